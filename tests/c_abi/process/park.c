/*
 * Memory is parked and wakes with its contents, at the same addresses: pools with tags, a captured graph's pool, modes,
 * misuse, requests while parked, frees while parked. Runs on the emulated driver and on a GPU.
 *
 *   park CONFIG
 */
#include "../misuse/misuse.h"

typedef unsigned long long address;

unsigned cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuDevicePrimaryCtxRelease_v2(int);
unsigned cuCtxSetCurrent(void *);
unsigned cuStreamCreate(cachalot_stream *, unsigned), cuStreamDestroy_v2(cachalot_stream);
unsigned cuStreamSynchronize(cachalot_stream);
unsigned cuMemsetD8Async(address, unsigned char, size_t, cachalot_stream);
unsigned cuMemcpyDtoHAsync_v2(void *, address, size_t, cachalot_stream);
unsigned cuMemGetInfo_v2(size_t *, size_t *);

enum { NON_BLOCKING = 1, WEIGHTS = 1, CACHE = 2, BLOCKS = 6 };

#define MIB ((size_t)1 << 20)
#define DRIVER(call) NEEDED((int)(call))

/* Lengths of the blocks of a pool: on pages of their own, and several on a page. */
static const size_t LENGTHS[BLOCKS] = {25 * MIB, 3 * MIB + 512, 512, 12 * MIB, 700, 40 * MIB};

static address number(const void *pointer) { return (address)(uintptr_t)pointer; }

static size_t free_memory(void) {
  size_t free = 0, total = 0;
  DRIVER(cuMemGetInfo_v2(&free, &total));
  return free;
}

/* The driver of a GPU takes some memory for itself at the first copies. */
static int is_near(size_t one, size_t other) { return (one > other ? one - other : other - one) <= 64 * MIB; }

/* Allocates the blocks of a pool, and fills each with bytes of its own. */
static void fill(cachalot_allocator *allocator, cachalot_pool pool, cachalot_stream stream, void **blocks, int first) {
  NEEDED(cachalot_pool_begin(allocator, 0, pool, CACHALOT_ROUTE_ALL, NULL));
  for (int block = 0; block < BLOCKS; ++block) {
    NEEDED(cachalot_malloc(allocator, 0, LENGTHS[block], stream, &blocks[block]));
    DRIVER(cuMemsetD8Async(number(blocks[block]), (unsigned char)(first + block), LENGTHS[block], stream));
  }
  NEEDED(cachalot_pool_end(allocator, 0, pool));
  NEEDED(cachalot_pool_release(allocator, 0, pool));
}

/* How many bytes of a block differ from `wanted`. */
static size_t wrong_bytes(const void *block, size_t bytes, unsigned char wanted, cachalot_stream stream) {
  static unsigned char copy[64 << 20];
  size_t wrong = 0;
  DRIVER(cuMemcpyDtoHAsync_v2(copy, number(block), bytes, stream));
  DRIVER(cuStreamSynchronize(stream));
  for (size_t at = 0; at < bytes; ++at) {
    wrong += copy[at] != wanted;
  }
  return wrong;
}

static size_t wrong_in_all(void **blocks, int first, int step, cachalot_stream stream) {
  size_t wrong = 0;
  for (int block = 0; block < BLOCKS; ++block) {
    if (blocks[block] != NULL) {
      wrong += wrong_bytes(blocks[block], LENGTHS[block], (unsigned char)(first + step * block), stream);
    }
  }
  return wrong;
}

static cachalot_park_target of_tag(uint64_t tag) {
  const cachalot_park_target target = {sizeof target, tag, NULL, CACHALOT_PARK_TAG, 0};
  return target;
}

static cachalot_status park_in(cachalot_allocator *allocator, int device, uint64_t tag, cachalot_park_mode mode,
                               cachalot_park_order order) {
  const cachalot_park_target target = of_tag(tag);
  const cachalot_park_options options = {sizeof options, mode, order};
  return cachalot_park(allocator, device, &target, &options);
}

/* Without options, the contents are kept. */
static cachalot_status park(cachalot_allocator *allocator, uint64_t tag) {
  const cachalot_park_target target = of_tag(tag);
  return cachalot_park(allocator, 0, &target, NULL);
}

static cachalot_status wake(cachalot_allocator *allocator, uint64_t tag) {
  const cachalot_park_target target = of_tag(tag);
  return cachalot_wake(allocator, 0, &target);
}

static cachalot_park_report parked(cachalot_allocator *allocator, uint64_t tag) {
  cachalot_park_report report = CACHALOT_PARK_REPORT_INIT;
  const cachalot_park_target target = of_tag(tag);
  NEEDED(cachalot_get_park_report(allocator, 0, &target, &report));
  return report;
}

/* Checks that the names add up to what the driver says is in use, with `parked` bytes parked. */
static void check_remaining(cachalot_allocator *allocator, uint64_t least_parked) {
  cachalot_remaining_memory memory = CACHALOT_REMAINING_MEMORY_INIT;
  NEEDED(cachalot_get_remaining_memory(allocator, 0, &memory));
  CHECK(memory.used_bytes == memory.block_bytes + memory.pending_bytes + memory.cached_bytes + memory.spare_bytes +
                                 memory.leaked_bytes + memory.other_bytes);
  CHECK(memory.leaked_bytes == 0 && memory.pending_bytes == 0);
  CHECK(memory.parked_bytes >= least_parked && (memory.parked_bytes == 0) == (least_parked == 0));
}

int main(int count, char **arguments) {
  void *context = NULL, *weights[BLOCKS], *cache[BLOCKS], *other = NULL, *refused = NULL;
  cachalot_stream stream = NULL;
  cachalot_allocator *allocator = NULL;
  cachalot_pool pools[2];
  if (count != 2) {
    fprintf(stderr, "usage: park CONFIG\n");
    return 2;
  }
  DRIVER(cuInit(0));
  DRIVER(cuDevicePrimaryCtxRetain(&context, 0));
  DRIVER(cuCtxSetCurrent(context));
  DRIVER(cuStreamCreate(&stream, NON_BLOCKING));
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  options.config = arguments[1];
  NEEDED(cachalot_create(&options, &allocator));
  for (int pool = 0; pool < 2; ++pool) {
    NEEDED(cachalot_pool_create(allocator, 0, 0, &pools[pool]));
    NEEDED(cachalot_pool_set_tag(allocator, 0, pools[pool], pool == 0 ? WEIGHTS : CACHE));
  }
  fill(allocator, pools[0], stream, weights, 10);
  fill(allocator, pools[1], stream, cache, 100);
  NEEDED(cachalot_malloc(allocator, 0, 30 * MIB, stream, &other));
  DRIVER(cuMemsetD8Async(number(other), 7, 30 * MIB, stream));

  /* Misuse: nothing changes. */
  cachalot_park_target weights_target = of_tag(WEIGHTS);
  CHECK(park(allocator, 0) == CACHALOT_ERROR_INVALID_ARGUMENT);
  CHECK(park_in(allocator, 0, WEIGHTS, 3, CACHALOT_PARK_AFTER_DEVICE) == CACHALOT_ERROR_INVALID_ARGUMENT);
  CHECK(park_in(allocator, 0, WEIGHTS, CACHALOT_PARK_KEEP, 2) == CACHALOT_ERROR_INVALID_ARGUMENT);
  CHECK(park(allocator, 3) == CACHALOT_ERROR_UNKNOWN_TAG);
  CHECK(cachalot_park(allocator, 9, &weights_target, NULL) == CACHALOT_ERROR_UNKNOWN_DEVICE);
  CHECK(cachalot_park(allocator, 0, NULL, NULL) == CACHALOT_ERROR_NULL);
  CHECK(wake(allocator, 3) == CACHALOT_ERROR_UNKNOWN_TAG);
  CHECK(cachalot_get_park_report(allocator, 0, &weights_target, NULL) == CACHALOT_ERROR_NULL);
  weights_target.kind = 3;
  CHECK(cachalot_park(allocator, 0, &weights_target, NULL) == CACHALOT_ERROR_INVALID_ARGUMENT);
  CHECK(cachalot_wake_start(allocator, 0, &weights_target) == CACHALOT_ERROR_INVALID_ARGUMENT);
  weights_target = of_tag(WEIGHTS);
  weights_target.reserved = 1;
  CHECK(cachalot_park(allocator, 0, &weights_target, NULL) == CACHALOT_ERROR_INVALID_ARGUMENT);
  weights_target = of_tag(WEIGHTS);
  cachalot_pool nothing = {0, 0};
  CHECK(cachalot_pool_set_tag(allocator, 0, nothing, WEIGHTS) == CACHALOT_ERROR_UNKNOWN_POOL);
  CHECK(parked(allocator, WEIGHTS).state == CACHALOT_AWAKE);

  const cachalot_park_target cache_target = of_tag(CACHE);
  size_t before = free_memory();
  for (int round = 0; round < 3; ++round) {
    NEEDED(cachalot_retain_host_memory(allocator, 0, round == 1 ? UINT64_MAX : 0));
    NEEDED(park_in(allocator, 0, WEIGHTS, CACHALOT_PARK_KEEP,
                   round == 2 ? CACHALOT_PARK_AFTER_STREAMS : CACHALOT_PARK_AFTER_DEVICE));
    NEEDED(park(allocator, WEIGHTS));
    cachalot_park_report report = parked(allocator, WEIGHTS);
    CHECK(report.state == CACHALOT_ASLEEP && report.mapped_bytes == 0 && report.ordinary_bytes == 0);
    CHECK(report.parked_bytes >= 80 * MIB && report.kept_bytes == report.parked_bytes);
    CHECK(report.host_bytes >= report.kept_bytes);
    CHECK(is_near(free_memory(), before + report.parked_bytes));
    NEEDED(cachalot_pool_begin(allocator, 0, pools[0], CACHALOT_ROUTE_ALL, NULL));
    CHECK(cachalot_malloc(allocator, 0, 512, stream, &refused) == CACHALOT_ERROR_PARKED && refused == NULL);
    NEEDED(cachalot_tag_set_fallback(allocator, 0, WEIGHTS, 1));
    NEEDED(cachalot_malloc(allocator, 0, 512, stream, &refused));
    NEEDED(cachalot_free(allocator, refused));
    refused = NULL;
    NEEDED(cachalot_tag_set_fallback(allocator, 0, WEIGHTS, 0));
    CHECK(cachalot_malloc(allocator, 0, 512, stream, &refused) == CACHALOT_ERROR_PARKED && refused == NULL);
    NEEDED(cachalot_pool_end(allocator, 0, pools[0]));
    NEEDED(cachalot_pool_release(allocator, 0, pools[0]));
    NEEDED(park(allocator, CACHE));
    CHECK(wrong_bytes(other, 30 * MIB, 7, stream) == 0);
    check_remaining(allocator, parked(allocator, WEIGHTS).parked_bytes);
    NEEDED(cachalot_wake_start(allocator, 0, &weights_target));
    NEEDED(cachalot_wake_start(allocator, 0, &cache_target));
    CHECK(parked(allocator, CACHE).state == CACHALOT_WAKING);
    NEEDED(cachalot_wake_wait(allocator, 0, &weights_target));
    CHECK(wrong_in_all(weights, 10, 1, stream) == 0);
    NEEDED(cachalot_wake_wait(allocator, 0, &cache_target));
    CHECK(wrong_in_all(cache, 100, 1, stream) == 0);
    report = parked(allocator, WEIGHTS);
    CHECK(report.state == CACHALOT_AWAKE && report.parked_bytes == 0);
    check_remaining(allocator, 0);
    CHECK((report.host_bytes > 0) == (round == 1) && report.idle_host_bytes == report.host_bytes);
    CHECK(is_near(free_memory(), before));
  }

  /* The emulated driver counts waits for the whole device. */
  uint64_t (*calls)(const char *);
  *(void **)&calls = dlsym(RTLD_DEFAULT, "emu_calls");
  for (cachalot_park_order order = 0; calls != NULL && order <= CACHALOT_PARK_AFTER_STREAMS; ++order) {
    const uint64_t before = calls("cuCtxRecordEvent");
    NEEDED(park_in(allocator, 0, CACHE, CACHALOT_PARK_KEEP, order));
    CHECK((calls("cuCtxRecordEvent") > before) == (order == CACHALOT_PARK_AFTER_DEVICE));
    NEEDED(wake(allocator, CACHE));
  }

  /* Zeroes, and anything. */
  NEEDED(park_in(allocator, 0, CACHE, CACHALOT_PARK_ZERO, CACHALOT_PARK_AFTER_DEVICE));
  CHECK(parked(allocator, CACHE).kept_bytes == 0 && parked(allocator, CACHE).host_bytes == 0);
  NEEDED(wake(allocator, CACHE));
  CHECK(wrong_in_all(cache, 0, 0, stream) == 0);
  NEEDED(park_in(allocator, 0, CACHE, CACHALOT_PARK_DROP, CACHALOT_PARK_AFTER_DEVICE));
  NEEDED(wake(allocator, CACHE));

  /* Blocks freed while parked; the others keep their contents. */
  NEEDED(park(allocator, WEIGHTS));
  for (int block = 0; block < BLOCKS; block += 2) {
    NEEDED(cachalot_free(allocator, weights[block]));
    weights[block] = NULL;
  }
  NEEDED(cachalot_pool_release(allocator, 0, pools[0]));
  NEEDED(wake(allocator, WEIGHTS));
  CHECK(wrong_in_all(weights, 10, 1, stream) == 0);

  /* All blocks of a parked tag are freed: nothing wakes. */
  NEEDED(park(allocator, CACHE));
  for (int block = 0; block < BLOCKS; ++block) {
    NEEDED(cachalot_free(allocator, cache[block]));
    if (weights[block] != NULL) {
      NEEDED(cachalot_free(allocator, weights[block]));
    }
  }
  NEEDED(cachalot_free(allocator, other));
  NEEDED(cachalot_pool_release(allocator, 0, pools[1]));
  NEEDED(wake(allocator, CACHE));
  CHECK(wake(allocator, CACHE) == CACHALOT_ERROR_UNKNOWN_TAG);
  NEEDED(cachalot_destroy(allocator));
  DRIVER(cuStreamDestroy_v2(stream));
  DRIVER(cuDevicePrimaryCtxRelease_v2(0));
  if (failures == 0) {
    puts("park: well");
  }
  return failures == 0 ? 0 : 1;
}
