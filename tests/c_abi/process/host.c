/*
 * Pinned memory of the host: the host writes to it, copies read it later, and a freed block is reused when they are done.
 * Runs on the emulated driver and on a GPU.
 *
 *   host CONFIG
 */
#include "../misuse/misuse.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

typedef unsigned long long address;

unsigned cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuDevicePrimaryCtxRelease_v2(int);
unsigned cuCtxSetCurrent(void *);
unsigned cuStreamCreate(cachalot_stream *, unsigned), cuStreamDestroy_v2(cachalot_stream);
unsigned cuStreamSynchronize(cachalot_stream), cuStreamQuery(cachalot_stream);
unsigned cuLaunchHostFunc(cachalot_stream, void (*)(void *), void *);
unsigned cuMemAlloc_v2(address *, size_t), cuMemFree_v2(address);
unsigned cuMemcpyHtoDAsync_v2(address, const void *, size_t, cachalot_stream);
unsigned cuMemcpyDtoHAsync_v2(void *, address, size_t, cachalot_stream);

enum { NON_BLOCKING = 1, NOT_READY = 600, BYTES = 3 << 20, LIMIT = 32 << 20, THREADS = 4, ROUNDS = 50 };

#define DRIVER(call) NEEDED((int)(call))

static cachalot_allocator *host;
static void *context;
static cachalot_stream stream;

/* Holds a stream until the flag is set. */
static void hold(void *flag) {
  while (!__atomic_load_n((int *)flag, __ATOMIC_ACQUIRE)) {
    sched_yield();
  }
}

static size_t other_than(const unsigned char *bytes, unsigned char wanted) {
  size_t wrong = 0;
  for (size_t at = 0; at < BYTES; ++at) {
    wrong += bytes[at] != wanted;
  }
  return wrong;
}

static int64_t statistic(const char *key) {
  int64_t value = 0;
  NEEDED(cachalot_find_statistic(host, 0, key, &value));
  return value;
}

/* A block whose copy has not run yet is not handed out, and afterwards it is. */
static void copies_keep_a_block(void (*announce)(void *)) {
  static unsigned char result[BYTES];
  int go = 0;
  void *block = NULL, *other = NULL, *again = NULL;
  address device = 0;
  NEEDED(cachalot_empty_cache(host, 0));
  DRIVER(cuMemAlloc_v2(&device, BYTES));
  NEEDED(cachalot_malloc(host, 0, BYTES, NULL, &block));
  memset(block, 0xaa, BYTES);
  DRIVER(cuLaunchHostFunc(stream, hold, &go));
  DRIVER(cuMemcpyHtoDAsync_v2(device, block, BYTES, stream));
  announce(block);
  NEEDED(cachalot_free(host, block));
  NEEDED(cachalot_malloc(host, 0, BYTES, NULL, &other));
  CHECK(other != block);
  memset(other, 0xbb, BYTES);
  CHECK(cuStreamQuery(stream) == NOT_READY);
  __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
  DRIVER(cuStreamSynchronize(stream));
  NEEDED(cachalot_process_events(host, 0));
  NEEDED(cachalot_malloc(host, 0, BYTES, NULL, &again));
  CHECK(again == block);
  DRIVER(cuMemcpyDtoHAsync_v2(again, device, BYTES, stream));
  announce(again);
  DRIVER(cuStreamSynchronize(stream));
  memcpy(result, again, BYTES);
  CHECK(other_than(result, 0xaa) == 0);
  CHECK(other_than(other, 0xbb) == 0);
  NEEDED(cachalot_free(host, again));
  NEEDED(cachalot_free(host, other));
  DRIVER(cuMemFree_v2(device));
}

static void by_stream(void *block) { NEEDED(cachalot_record_stream(host, block, stream)); }
static void by_use(void *block) { NEEDED(cachalot_record_use(host, block, stream)); }

/* Each thread copies blocks of its own pattern to the device and back. */
static void *work(void *number) {
  const unsigned char mark = (unsigned char)(uintptr_t)number;
  cachalot_stream own = NULL;
  address device = 0;
  DRIVER(cuCtxSetCurrent(context));
  DRIVER(cuStreamCreate(&own, NON_BLOCKING));
  DRIVER(cuMemAlloc_v2(&device, BYTES));
  for (int round = 0; round < ROUNDS; ++round) {
    const size_t bytes = (size_t)1000 + (size_t)(round * 54321) % (BYTES - 1000);
    void *up = NULL, *down = NULL;
    NEEDED(cachalot_malloc(host, 0, bytes, NULL, &up));
    memset(up, mark, bytes);
    DRIVER(cuMemcpyHtoDAsync_v2(device, up, bytes, own));
    NEEDED(cachalot_record_stream(host, up, own));
    NEEDED(cachalot_free_sized(host, up, bytes));
    NEEDED(cachalot_malloc(host, 0, bytes, NULL, &down));
    DRIVER(cuMemcpyDtoHAsync_v2(down, device, bytes, own));
    DRIVER(cuStreamSynchronize(own));
    for (size_t at = 0; at < bytes; at += 97) {
      CHECK(((unsigned char *)down)[at] == mark);
    }
    NEEDED(cachalot_free(host, down));
  }
  DRIVER(cuMemFree_v2(device));
  NEEDED(cachalot_stream_destroyed(host, 0, own));
  DRIVER(cuStreamDestroy_v2(own));
  return NULL;
}

static int count_bytes(void *total, const char *text, size_t bytes) {
  (void)text;
  *(size_t *)total += bytes;
  return 0;
}

int main(int count, char **arguments) {
  pthread_t threads[THREADS];
  void *block = NULL, *other = NULL;
  size_t written = 0;
  if (count != 2) {
    fprintf(stderr, "usage: host CONFIG\n");
    return 2;
  }
  DRIVER(cuInit(0));
  DRIVER(cuDevicePrimaryCtxRetain(&context, 0));
  DRIVER(cuCtxSetCurrent(context));
  DRIVER(cuStreamCreate(&stream, NON_BLOCKING));

  cachalot_options options = CACHALOT_OPTIONS_INIT;
  const int first = 0;
  options.devices = &first;
  options.device_count = 1;
  options.config = arguments[1];
  const uint32_t of_devices[] = {CACHALOT_SIMULATED, CACHALOT_PEER_ACCESS, CACHALOT_OPEN_LATER};
  for (size_t flag = 0; flag < sizeof of_devices / sizeof of_devices[0]; ++flag) {
    options.flags = CACHALOT_HOST | of_devices[flag];
    CHECK(cachalot_create(&options, &host) == CACHALOT_ERROR_INVALID_ARGUMENT);
  }
  options.flags = CACHALOT_HOST;
  NEEDED(cachalot_create(&options, &host));

  /* The memory is the system's, and a block belongs to no stream. */
  cachalot_device_info info = CACHALOT_DEVICE_INFO_INIT;
  NEEDED(cachalot_get_device_info(host, 0, &info));
  CHECK(info.total_bytes > 0 && info.free_bytes <= info.total_bytes && info.virtual_memory == 0);
  CHECK(cachalot_malloc(host, 0, 1, stream, &block) == CACHALOT_ERROR_INVALID_STREAM && block == NULL);
  CHECK(cachalot_malloc(host, 0, info.total_bytes * 2, NULL, &block) == CACHALOT_ERROR_OUT_OF_MEMORY);
  NEEDED(cachalot_malloc(host, 0, 0, NULL, &block));
  CHECK(block == NULL);

  copies_keep_a_block(by_stream);
  copies_keep_a_block(by_use);

  for (uintptr_t number = 0; number < THREADS; ++number) {
    CHECK(pthread_create(&threads[number], NULL, work, (void *)(number + 1)) == 0);
  }
  for (int number = 0; number < THREADS; ++number) {
    CHECK(pthread_join(threads[number], NULL) == 0);
  }
  NEEDED(cachalot_check_invariants(host));

  /* Nothing is in use: the cache goes back as far as it is told to. */
  CHECK(statistic("allocated_bytes.all.current") == 0 && statistic("reserved_bytes.all.current") > 0);
  NEEDED(cachalot_snapshot(host, NULL, count_bytes, &written));
  CHECK(written > 0);
  NEEDED(cachalot_process_events(host, 0));
  NEEDED(cachalot_trim(host, 0, 0));
  CHECK(statistic("reserved_bytes.all.current") == 0);

  /* A limit holds. */
  NEEDED(cachalot_set_limit(host, 0, LIMIT));
  NEEDED(cachalot_malloc(host, 0, BYTES, NULL, &block));
  CHECK(cachalot_malloc(host, 0, LIMIT, NULL, &other) == CACHALOT_ERROR_OUT_OF_MEMORY);
  CHECK(statistic("reserved_bytes.all.current") <= LIMIT);
  NEEDED(cachalot_enable_peer_access(host, 0, 0));
  NEEDED(cachalot_free(host, block));
  NEEDED(cachalot_empty_cache(host, 0));
  CHECK(statistic("reserved_bytes.all.current") == 0);

  NEEDED(cachalot_destroy(host));
  DRIVER(cuStreamDestroy_v2(stream));
  DRIVER(cuCtxSetCurrent(NULL));
  DRIVER(cuDevicePrimaryCtxRelease_v2(0));
  if (failures == 0) {
    puts("host: well");
  }
  return failures == 0 ? 0 : 1;
}
