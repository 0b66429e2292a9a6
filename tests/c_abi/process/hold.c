/*
 * Frees that are held off: requests, frees and releases of the cache call no function of the driver that waits or that
 * releases memory. The emulated driver refuses each such call meanwhile, and counts the refusals.
 *
 *   hold CONFIG
 */
#include "../misuse/misuse.h"

#include <string.h>

unsigned cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuDevicePrimaryCtxRelease_v2(int);
unsigned cuCtxSetCurrent(void *), cuStreamCreate(cachalot_stream *, unsigned), cuStreamDestroy_v2(cachalot_stream);
unsigned cuMemsetD8Async(unsigned long long, unsigned char, size_t, cachalot_stream);
int emu_plan(const char *);
void emu_plan_clear(void);
uint64_t emu_faults(void);

enum { STREAMS = 3, MOST_BLOCKS = 64, ROUNDS = 8, CALLS = 200 };

#define DRIVER(call) NEEDED((int)(call))

static const char *const held_off[] = {
    "cuMemFree_v2",        "cuMemFreeAsync", "cuMemUnmap",        "cuMemRelease", "cuStreamSynchronize",
    "cuEventSynchronize", "cuCtxSynchronize", "cuMemAddressFree",
};

static cachalot_stream streams[STREAMS];
static void *blocks[MOST_BLOCKS];
static uint32_t seed = 1;

static uint32_t next(uint32_t below) {
  seed = seed * 1664525u + 1013904223u;
  return (uint32_t)(((uint64_t)seed * below) >> 32);
}

/* Has the driver refuse every call that a hold forbids. */
static void refuse(void) {
  char rules[1024] = "[", *end = rules + 1;
  for (size_t at = 0; at < sizeof held_off / sizeof held_off[0]; ++at) {
    end += snprintf(end, (size_t)(rules + sizeof rules - end), "%s{\"fn\":\"%s\",\"code\":999}", at == 0 ? "" : ",",
                    held_off[at]);
  }
  snprintf(end, (size_t)(rules + sizeof rules - end), "]");
  CHECK(emu_plan(rules) == 0);
}

/* Makes a random call. Returns whether it was a request that was refused for lack of memory. */
static int step(const cachalot_allocator *allocator) {
  const uint32_t which = next(20), at = next(MOST_BLOCKS);
  const cachalot_stream stream = streams[next(STREAMS)];
  if (which < 17 && blocks[at] == NULL) {
    const size_t bytes = (size_t)1 + next(40u << 20);
    const cachalot_status status = cachalot_malloc(allocator, 0, bytes, stream, &blocks[at]);
    CHECK(status == CACHALOT_OK || status == CACHALOT_ERROR_OUT_OF_MEMORY);
    if (status == CACHALOT_OK) {
      DRIVER(cuMemsetD8Async((uintptr_t)blocks[at], 1, 1, stream));
    }
    return status != CACHALOT_OK;
  }
  if (which < 17) {
    if (next(2) == 0) {
      NEEDED(cachalot_record_stream(allocator, blocks[at], stream));
    }
    NEEDED(cachalot_free(allocator, blocks[at]));
    blocks[at] = NULL;
  } else if (which == 17) {
    NEEDED(cachalot_trim(allocator, 0, 0));
  } else if (which == 18) {
    const cachalot_status status = cachalot_empty_cache(allocator, 0);
    CHECK(status == CACHALOT_OK || status == CACHALOT_ERROR_CAPTURING);
  } else {
    NEEDED(cachalot_maintain(allocator, 0, 1000000, NULL));
  }
  return 0;
}

int main(int count, char **arguments) {
  const int first = 0;
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  void *context = NULL;
  int refused = 0;
  if (count != 2) {
    fprintf(stderr, "usage: hold CONFIG\n");
    return 2;
  }
  DRIVER(cuInit(0));
  DRIVER(cuDevicePrimaryCtxRetain(&context, 0));
  DRIVER(cuCtxSetCurrent(context));
  for (int stream = 0; stream < STREAMS; ++stream) {
    DRIVER(cuStreamCreate(&streams[stream], 1));
  }
  options.devices = &first;
  options.device_count = 1;
  options.config = arguments[1];
  NEEDED(cachalot_create(&options, &allocator));
  NEEDED(cachalot_set_limit(allocator, 0, (uint64_t)800 << 20));
  CHECK(cachalot_hold_end(allocator, 0) == CACHALOT_ERROR_INVALID_ARGUMENT);
  for (int round = 0; round < ROUNDS; ++round) {
    for (int call = 0; call < CALLS; ++call) {
      step(allocator);
    }
    NEEDED(cachalot_hold_begin(allocator, 0));
    const uint64_t faults = emu_faults();
    refuse();
    for (int call = 0; call < CALLS; ++call) {
      refused += step(allocator);
    }
    emu_plan_clear();
    CHECK(emu_faults() == faults);
    NEEDED(cachalot_hold_end(allocator, 0));
    NEEDED(cachalot_check_invariants(allocator));
  }
  /* The limit was reached: requests failed where they would have released memory. */
  CHECK(refused > 0);
  for (int at = 0; at < MOST_BLOCKS; ++at) {
    NEEDED(cachalot_free(allocator, blocks[at]));
  }
  NEEDED(cachalot_destroy(allocator));
  for (int stream = 0; stream < STREAMS; ++stream) {
    DRIVER(cuStreamDestroy_v2(streams[stream]));
  }
  DRIVER(cuDevicePrimaryCtxRelease_v2(0));
  if (failures == 0) {
    puts("hold: well");
  }
  return failures == 0 ? 0 : 1;
}
