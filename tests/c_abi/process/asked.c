/*
 * With CACHALOT_ASK_STREAM_ID streams need not be reported: a block that a stream was said to use is freed when the stream is gone,
 * before and after its handle goes to another one, and is kept until the stream's work is done.
 */
#include "streams.h"

int main(int argc, char **argv) {
  scene it;
  cachalot_stream home;
  int reused;
  begin(argc, argv);
  scene_options.flags |= CACHALOT_ASK_STREAM_ID;
  it = scene_open();
  enter_driver(0);
  home = make_stream();
  for (reused = 0; reused < 2; ++reused) {
    const int64_t active = statistic(it.allocator, "active.all.current");
    cachalot_stream visitor = make_stream(), next = NULL;
    void *block = NULL;
    NEEDED(cachalot_malloc(it.allocator, 0, 5000, home, &block));
    NEEDED(cachalot_record_stream(it.allocator, block, visitor));
    destroy_stream(visitor);
    if (reused) {
      next = make_stream();
      CHECK(next == visitor);
    }
    CHECK(cachalot_free(it.allocator, block) == CACHALOT_OK);
    NEEDED(cachalot_empty_cache(it.allocator, 0));
    CHECK(statistic(it.allocator, "active.all.current") == active);
    if (next != NULL) {
      destroy_stream(next);
    }
  }
  destroy_stream(home);
  leave_driver(0);
  scene_close(&it);
  return failures != 0;
}
