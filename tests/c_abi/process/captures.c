/*
 * A stream captures a graph that requests nothing, so that the allocator is not told of it: every call goes on, and a block that
 * the capturing stream was said to use can be freed. It is kept until the capture ends.
 */
#include "streams.h"

static cachalot_stream capturing;

static void begin_graph(cachalot_allocator *allocator, int mode) {
  if (is_simulated()) {
    NEEDED(cachalot_simulate_capture(allocator, 0, capturing, 1));
  } else {
    NEEDED(cuda.begin_capture(capturing, mode));
  }
}

static void end_graph(cachalot_allocator *allocator) {
  void *graph = NULL;
  if (is_simulated()) {
    NEEDED(cachalot_simulate_capture(allocator, 0, capturing, 0));
    return;
  }
  /* It would fail if a call had become part of the graph, or had spoiled it. */
  NEEDED(cuda.end_capture(capturing, &graph));
  NEEDED(cuda.graph_destroy(graph));
}

int main(int argc, char **argv) {
  scene it;
  cachalot_stream home;
  int mode;
  begin(argc, argv);
  /* Without reports, a block waits for the work before the announcement alone, and not for a later capture. */
  if (!is_simulated()) {
    scene_options.flags |= CACHALOT_STREAMS_REPORTED;
  }
  it = scene_open();
  enter_driver(0);
  home = make_stream();
  capturing = make_stream();
  for (mode = 0; mode < 3; ++mode) {
    void *used = NULL, *next = NULL;
    int64_t active;
    NEEDED(cachalot_malloc(it.allocator, 0, 5000, home, &used));
    NEEDED(cachalot_record_stream(it.allocator, used, capturing));
    active = statistic(it.allocator, "active.all.current");
    begin_graph(it.allocator, mode);
    CHECK(cachalot_free(it.allocator, used) == CACHALOT_OK);
    CHECK(cachalot_process_events(it.allocator, 0) == CACHALOT_OK);
    /* The capturing stream may still use it. */
    CHECK(statistic(it.allocator, "active.all.current") == active);
    NEEDED(cachalot_malloc(it.allocator, 0, 5000, home, &next));
    CHECK(next != used);
    NEEDED(cachalot_free(it.allocator, next));
    end_graph(it.allocator);
    finish(it.allocator, capturing);
    NEEDED(cachalot_process_events(it.allocator, 0));
    NEEDED(cachalot_empty_cache(it.allocator, 0));
    CHECK(statistic(it.allocator, "active.all.current") == active - 1);
  }
  NEEDED(cachalot_stream_destroyed(it.allocator, 0, home));
  NEEDED(cachalot_stream_destroyed(it.allocator, 0, capturing));
  destroy_stream(home);
  destroy_stream(capturing);
  leave_driver(0);
  scene_close(&it);
  return failures != 0;
}
