/*
 * Threads that share nothing but the allocator: each has streams of its own, which come and go, and private pools. No call of one
 * may fail because of what the others do.
 *
 *   threads [--simulated] [rounds]
 */
#include "streams.h"

#include <pthread.h>

#define THREADS 4
#define STREAMS 4

static scene it;
static int rounds = 200;

static void *work(void *argument) {
  int round;
  enter_driver(0);
  for (round = 0; round < rounds; ++round) {
    cachalot_stream streams[STREAMS];
    void *blocks[STREAMS] = {NULL};
    int index;
    for (index = 0; index < STREAMS; ++index) {
      /* A simulated stream has the handle that it had in the last round, as the driver's have. */
      streams[index] = is_simulated() ? (cachalot_stream)((uintptr_t)argument * 0x100000 + 0x10000 + (uintptr_t)index * 64)
                                      : make_stream();
    }
    for (index = 0; index < STREAMS; ++index) {
      cachalot_pool pool;
      void *routed = NULL;
      NEEDED(cachalot_malloc(it.allocator, 0, 4096, streams[index], &blocks[index]));
      NEEDED(cachalot_pool_create(it.allocator, 0, 0, &pool));
      NEEDED(cachalot_pool_begin(it.allocator, 0, pool, CACHALOT_ROUTE_THREAD, NULL));
      NEEDED(cachalot_malloc(it.allocator, 0, 4096, streams[index], &routed));
      NEEDED(cachalot_pool_end(it.allocator, 0, pool));
      NEEDED(cachalot_free(it.allocator, routed));
      NEEDED(cachalot_pool_release(it.allocator, 0, pool));
      NEEDED(cachalot_pool_release(it.allocator, 0, pool));
    }
    for (index = 0; index < STREAMS; ++index) {
      /* Every other one is held when its stream goes. */
      if (index % 2 == 0) {
        NEEDED(cachalot_free(it.allocator, blocks[index]));
      }
      NEEDED(cachalot_stream_destroyed(it.allocator, 0, streams[index]));
      destroy_stream(streams[index]);
      if (index % 2 != 0) {
        NEEDED(cachalot_free(it.allocator, blocks[index]));
      }
    }
  }
  leave_driver(0);
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t threads[THREADS];
  uintptr_t index;
  begin(argc, argv);
  if (argc > 1 && argv[argc - 1][0] != '-') {
    rounds = atoi(argv[argc - 1]);
  }
  it = scene_open();
  enter_driver(0);
  for (index = 0; index < THREADS; ++index) {
    CHECK(pthread_create(&threads[index], NULL, work, (void *)index) == 0);
  }
  for (index = 0; index < THREADS; ++index) {
    CHECK(pthread_join(threads[index], NULL) == 0);
  }
  leave_driver(0);
  scene_close(&it);
  return failures != 0;
}
