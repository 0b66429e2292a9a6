/*
 * A process has 4,096 events behind which a driver orders streams (CU_EVENT_INTERPROCESS), for the library and the program
 * together. On the emulated driver, which has that bound.
 */
#include "../misuse/misuse.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { USES = 4300, BLOCK = 65536, MEBIBYTE = 1 << 20 };

typedef struct CUstream_st *stream_handle;

static uint64_t (*calls)(const char *);
static int (*create_stream)(stream_handle *, unsigned);
static int (*create_event)(void **, unsigned);
static int (*destroy_event)(void *);
static int (*launch)(stream_handle, void (*)(void *), void *);
static int (*clear)(unsigned long long, unsigned char, size_t, stream_handle);
static int (*synchronize)(stream_handle);

static atomic_int gate;

static void hold(void *unused) {
  (void)unused;
  while (!atomic_load(&gate)) {
    usleep(100);
  }
}

static cachalot_allocator *begin_allocator(const char *config) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  options.config = config;
  options.device_count = 1;
  NEEDED(cachalot_create(&options, &allocator));
  return allocator;
}

static void limit_to_held(cachalot_allocator *allocator) {
  cachalot_statistics statistics = CACHALOT_STATISTICS_INIT;
  NEEDED(cachalot_get_statistics(allocator, 0, &statistics));
  NEEDED(cachalot_set_limit(allocator, 0, (uint64_t)statistics.reserved_bytes.current));
}

/* More uses than events, on a stream that does not go on: each request is served, and the host never waits. */
static void more_uses_than_events(const char *config) {
  cachalot_allocator *allocator = begin_allocator(config);
  static void *blocks[USES];
  stream_handle own = NULL, side = NULL;
  void *event = NULL;
  uint64_t waits;
  int i;
  atomic_store(&gate, 0);
  CHECK(create_stream(&own, 1) == 0 && create_stream(&side, 1) == 0);
  for (i = 0; i < USES; ++i) {
    NEEDED(cachalot_malloc(allocator, 0, BLOCK, (cachalot_stream)own, &blocks[i]));
  }
  CHECK(launch(side, hold, NULL) == 0);
  waits = calls("cuEventSynchronize");
  for (i = 0; i < USES; ++i) {
    CHECK(clear((unsigned long long)(size_t)blocks[i], 1, 16, side) == 0);
    NEEDED(cachalot_record_use(allocator, blocks[i], (cachalot_stream)side));
  }
  CHECK(create_event(&event, 6) == 2);
  for (i = 0; i < USES; ++i) {
    NEEDED(cachalot_free(allocator, blocks[i]));
  }
  limit_to_held(allocator);
  for (i = 0; i < USES; ++i) {
    NEEDED(cachalot_malloc(allocator, 0, BLOCK, (cachalot_stream)own, &blocks[i]));
  }
  CHECK(calls("cuEventSynchronize") == waits);
  atomic_store(&gate, 1);
  CHECK(synchronize(own) == 0 && synchronize(side) == 0);
  for (i = 0; i < USES; ++i) {
    NEEDED(cachalot_free(allocator, blocks[i]));
  }
  /* The program's own, once the library's rest. */
  NEEDED(cachalot_empty_cache(allocator, 0));
  for (i = 0; i < 64; ++i) {
    CHECK(create_event(&blocks[i], 6) == 0);
  }
  for (i = 0; i < 64; ++i) {
    CHECK(destroy_event(blocks[i]) == 0);
  }
  NEEDED(cachalot_stream_destroyed(allocator, 0, (cachalot_stream)own));
  NEEDED(cachalot_stream_destroyed(allocator, 0, (cachalot_stream)side));
  NEEDED(cachalot_destroy(allocator));
}

static cachalot_allocator *shared;
static stream_handle shared_own;

static void *request(void *unused) {
  void *block = NULL;
  (void)unused;
  NEEDED(cachalot_malloc(shared, 0, 30 * MEBIBYTE, (cachalot_stream)shared_own, &block));
  NEEDED(cachalot_free(shared, block));
  return NULL;
}

/* The program has all the events, and the memory is short: a request waits, and no capture of another thread waits for it. */
static void captures_begin_beside_a_wait(const char *config) {
  static void *events[4096];
  const cachalot_pool pool = {5, 5};
  stream_handle side = NULL;
  pthread_t thread;
  void *block = NULL;
  uint64_t waits;
  int count;
  atomic_store(&gate, 0);
  for (count = 0; count < 4096 && create_event(&events[count], 6) == 0; ++count) {
  }
  CHECK(count > 4000);
  shared = begin_allocator(config);
  CHECK(create_stream(&shared_own, 1) == 0 && create_stream(&side, 1) == 0);
  NEEDED(cachalot_malloc(shared, 0, 30 * MEBIBYTE, (cachalot_stream)shared_own, &block));
  CHECK(launch(side, hold, NULL) == 0);
  NEEDED(cachalot_record_use(shared, block, (cachalot_stream)side));
  NEEDED(cachalot_free(shared, block));
  limit_to_held(shared);
  NEEDED(cachalot_pool_retain(shared, 0, pool, 0));
  waits = calls("cuEventSynchronize");
  CHECK(pthread_create(&thread, NULL, request, NULL) == 0);
  while (calls("cuEventSynchronize") == waits) {
    usleep(100);
  }
  NEEDED(cachalot_capture_begin(shared, 0, pool, CACHALOT_ROUTE_THREAD, NULL));
  NEEDED(cachalot_capture_end(shared, 0, pool));
  atomic_store(&gate, 1);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(synchronize(side) == 0);
  NEEDED(cachalot_pool_release(shared, 0, pool));
  NEEDED(cachalot_pool_release(shared, 0, pool));
  NEEDED(cachalot_stream_destroyed(shared, 0, (cachalot_stream)shared_own));
  NEEDED(cachalot_stream_destroyed(shared, 0, (cachalot_stream)side));
  NEEDED(cachalot_destroy(shared));
  while (count > 0) {
    CHECK(destroy_event(events[--count]) == 0);
  }
}

/* What was freed before the device became idle is available after one call. */
static void one_call_frees_what_is_complete(const char *config) {
  cachalot_allocator *allocator = begin_allocator(config);
  cachalot_statistics statistics = CACHALOT_STATISTICS_INIT;
  stream_handle own = NULL, side = NULL;
  int round, i;
  CHECK(create_stream(&own, 1) == 0 && create_stream(&side, 1) == 0);
  for (round = 0; round < 30; ++round) {
    void *blocks[2];
    for (i = 0; i < 2; ++i) {
      NEEDED(cachalot_malloc(allocator, 0, 30 * MEBIBYTE, (cachalot_stream)own, &blocks[i]));
      CHECK(clear((unsigned long long)(size_t)blocks[i], 1, MEBIBYTE, side) == 0);
      NEEDED(cachalot_record_stream(allocator, blocks[i], (cachalot_stream)side));
      NEEDED(cachalot_free(allocator, blocks[i]));
    }
    CHECK(synchronize(side) == 0 && synchronize(own) == 0);
    NEEDED(cachalot_process_events(allocator, 0));
    NEEDED(cachalot_get_statistics(allocator, 0, &statistics));
    CHECK(statistics.active_bytes.current == 0);
  }
  NEEDED(cachalot_stream_destroyed(allocator, 0, (cachalot_stream)own));
  NEEDED(cachalot_stream_destroyed(allocator, 0, (cachalot_stream)side));
  NEEDED(cachalot_destroy(allocator));
}

int main(int argc, char **argv) {
  void *library = dlopen(getenv("CACHALOT_LIBCUDA"), RTLD_LAZY);
  int (*init)(unsigned) = NULL;
  int (*retain)(void **, int) = NULL;
  int (*set_current)(void *) = NULL;
  const char *config = argc > 1 ? argv[1] : "";
  void *context = NULL;
  CHECK(library != NULL);
  /* What hangs is a failure. */
  alarm(300);
  FIND(library, init, "cuInit");
  FIND(library, retain, "cuDevicePrimaryCtxRetain");
  FIND(library, set_current, "cuCtxSetCurrent");
  FIND(library, calls, "emu_calls");
  FIND(library, create_stream, "cuStreamCreate");
  FIND(library, create_event, "cuEventCreate");
  FIND(library, destroy_event, "cuEventDestroy_v2");
  FIND(library, launch, "cuLaunchHostFunc");
  FIND(library, clear, "cuMemsetD8Async");
  FIND(library, synchronize, "cuStreamSynchronize");
  CHECK(init(0) == 0 && retain(&context, 0) == 0 && set_current(context) == 0);
  one_call_frees_what_is_complete(config);
  more_uses_than_events(config);
  captures_begin_beside_a_wait(config);
  return failures != 0;
}
