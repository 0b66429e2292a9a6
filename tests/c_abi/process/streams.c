/*
 * Streams that come and go, reported as the header says: before they are destroyed, while blocks of them are held, or pending for
 * another stream. There are more of them than a table of streams could hold. Threads that used their own default stream
 * report it before they end.
 *
 *   streams [--simulated] [count]
 */
#include "streams.h"

#include <pthread.h>

#define THREADS 300
#define PER_THREAD ((cachalot_stream)(uintptr_t)2)

static scene it;
static cachalot_stream kept;
static void *left;

/* One stream. Nothing of it is left at the end. */
static void come_and_go(int number) {
  const cachalot_stream stream = make_stream();
  void *block = NULL;
  NEEDED(cachalot_malloc(it.allocator, 0, 5000, stream, &block));
  if (number % 2 == 0) {
    NEEDED(cachalot_stream_destroyed(it.allocator, 0, stream));
    destroy_stream(stream);
    NEEDED(cachalot_free(it.allocator, block));
  } else {
    NEEDED(cachalot_record_stream(it.allocator, block, kept));
    NEEDED(cachalot_free(it.allocator, block));
    NEEDED(cachalot_stream_destroyed(it.allocator, 0, stream));
    destroy_stream(stream);
    finish(it.allocator, kept);
  }
}

/* A thread whose own stream has a block that outlives it, and uses one of another stream. */
static void *visit(void *argument) {
  void *other = NULL;
  (void)argument;
  enter_driver(0);
  NEEDED(cachalot_malloc(it.allocator, 0, 5000, PER_THREAD, &left));
  NEEDED(cachalot_malloc(it.allocator, 0, 5000, kept, &other));
  NEEDED(cachalot_record_stream(it.allocator, other, PER_THREAD));
  NEEDED(cachalot_free(it.allocator, other));
  NEEDED(cachalot_stream_destroyed(it.allocator, 0, PER_THREAD));
  leave_driver(0);
  return NULL;
}

int main(int argc, char **argv) {
  int64_t before;
  int number, count;
  begin(argc, argv);
  count = argc > 1 && argv[argc - 1][0] != '-' ? atoi(argv[argc - 1]) : 1000;
  it = scene_open();
  enter_driver(0);
  kept = make_stream();
  NEEDED(cachalot_empty_cache(it.allocator, 0));
  before = statistic(it.allocator, "reserved_bytes.all.current");
  for (number = 0; number < count; ++number) {
    come_and_go(number);
  }
  for (number = 0; number < THREADS; ++number) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, visit, NULL) == 0 && pthread_join(thread, NULL) == 0);
    NEEDED(cachalot_free(it.allocator, left));
  }
  finish(it.allocator, kept);
  NEEDED(cachalot_empty_cache(it.allocator, 0));
  CHECK(statistic(it.allocator, "reserved_bytes.all.current") == before);
  NEEDED(cachalot_stream_destroyed(it.allocator, 0, kept));
  destroy_stream(kept);
  leave_driver(0);
  scene_close(&it);
  return failures != 0;
}
