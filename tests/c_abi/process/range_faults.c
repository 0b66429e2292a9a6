/*
 * Elastic ranges over a driver that fails or is slow: what caches of other projects got wrong. A failed commit is
 * reported, changes nothing and loses no page; a slow one delays no cached request. Runs on the emulated driver.
 *
 *   range_faults CONFIG
 */
#include "../misuse/misuse.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

unsigned cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuDevicePrimaryCtxRelease_v2(int);
unsigned cuCtxSetCurrent(void *), cuStreamCreate(cachalot_stream *, unsigned), cuStreamDestroy_v2(cachalot_stream);
unsigned cuStreamSynchronize(cachalot_stream), cuMemsetD8_v2(uint64_t, unsigned char, size_t);
unsigned cuMemcpyDtoH_v2(void *, uint64_t, size_t);
int emu_plan(const char *);
void emu_plan_clear(void);
uint64_t emu_calls(const char *);
uint64_t emu_faults(void);

enum { PAGE = 2 << 20, PAGES = 8, MOST_CALLS = 40 };

#define DRIVER(call) NEEDED((int)(call))

static void *context;

static int64_t allocated(const cachalot_allocator *allocator) {
  cachalot_statistics found = CACHALOT_STATISTICS_INIT;
  NEEDED(cachalot_get_statistics(allocator, 0, &found));
  return found.allocated_bytes.current;
}

static void fill(const cachalot_range *range, size_t page, unsigned char value) {
  DRIVER(cuMemsetD8_v2((uint64_t)(uintptr_t)range->base + page * PAGE, value, PAGE));
}

/* Expects that every byte of a page is `value`. */
static void expect(const cachalot_range *range, size_t page, unsigned char value) {
  static unsigned char read[PAGE];
  DRIVER(cuMemcpyDtoH_v2(read, (uint64_t)(uintptr_t)range->base + page * PAGE, PAGE));
  CHECK(read[0] == value && memcmp(read, read + 1, PAGE - 1) == 0);
}

/* One call after the other fails: a commit that hits the failure reports it, and the range is as it was. A commit that
 * succeeds although the driver failed has found other memory, and has all of its pages. */
static int failures_are_reported_and_undone(const cachalot_allocator *allocator, const char *function, int code,
                                            cachalot_stream stream) {
  int refused = 0;
  for (int nth = 1; nth <= MOST_CALLS; ++nth) {
    cachalot_range range;
    char rule[120];
    NEEDED(cachalot_range_reserve(allocator, 0, (size_t)(PAGES + 1) * PAGE, &range));
    NEEDED(cachalot_range_commit(range, 0, PAGE, stream));
    fill(&range, 0, 7);
    NEEDED(cachalot_empty_cache(allocator, 0));
    const int64_t before = allocated(allocator);
    const uint64_t faults = emu_faults();
    snprintf(rule, sizeof rule, "[{\"fn\":\"%s\",\"nth\":%d,\"code\":%d}]", function, nth, code);
    CHECK(emu_plan(rule) == 0);
    const cachalot_status status = cachalot_range_commit(range, PAGE, (size_t)PAGES * PAGE, stream);
    const uint32_t said = cachalot_last_driver_code();
    emu_plan_clear();
    const int hit = emu_faults() > faults;
    if (status != CACHALOT_OK) {
      CHECK(hit && status == (code == 2 ? CACHALOT_ERROR_OUT_OF_MEMORY : CACHALOT_ERROR_DRIVER));
      CHECK(code == 2 || said == (uint32_t)code);
      CHECK(allocated(allocator) == before);
      expect(&range, 0, 7);
      ++refused;
      NEEDED(cachalot_range_commit(range, PAGE, (size_t)PAGES * PAGE, stream));
    }
    CHECK(allocated(allocator) == before + (int64_t)PAGES * PAGE);
    for (size_t page = 1; page <= PAGES; ++page) {
      fill(&range, page, (unsigned char)page);
    }
    for (size_t page = 1; page <= PAGES; ++page) {
      expect(&range, page, (unsigned char)page);
    }
    NEEDED(cachalot_range_release(range));
    NEEDED(cachalot_check_invariants(allocator));
    if (!hit) {
      return refused;
    }
  }
  return refused;
}

/* No memory stays behind after ranges that grew, failed and shrank. */
static void no_page_is_lost(const cachalot_allocator *allocator, cachalot_stream stream) {
  cachalot_statistics found = CACHALOT_STATISTICS_INIT;
  DRIVER(cuStreamSynchronize(stream));
  NEEDED(cachalot_empty_cache(allocator, 0));
  NEEDED(cachalot_get_statistics(allocator, 0, &found));
  CHECK(found.allocated_bytes.current == 0 && found.reserved_bytes.current == 0 && found.leaked_bytes == 0);
}

typedef struct commit {
  cachalot_range range;
  cachalot_stream stream;
  atomic_int done;
} commit;

static void *commit_slowly(void *of) {
  commit *const slow = of;
  DRIVER(cuCtxSetCurrent(context));
  NEEDED(cachalot_range_commit(slow->range, 0, PAGE, slow->stream));
  atomic_store(&slow->done, 1);
  return NULL;
}

/* While the driver maps a page for one thread, another thread allocates and frees cached memory. A commit of the other
 * thread maps after the first, and ends with it. */
static void a_slow_commit_delays_no_request(const cachalot_allocator *allocator, const cachalot_stream *streams) {
  static commit slow;
  cachalot_range own;
  pthread_t thread;
  void *block = NULL;
  slow.stream = streams[0];
  NEEDED(cachalot_range_reserve(allocator, 0, PAGE, &slow.range));
  NEEDED(cachalot_range_reserve(allocator, 0, 4 * PAGE, &own));
  NEEDED(cachalot_malloc(allocator, 0, 1000, streams[1], &block));
  NEEDED(cachalot_free(allocator, block));
  const uint64_t maps = emu_calls("cuMemMap");
  CHECK(emu_plan("[{\"fn\":\"cuMemMap\",\"delay_us\":5000000,\"when\":\"after\"}]") == 0);
  CHECK(pthread_create(&thread, NULL, commit_slowly, &slow) == 0);
  while (emu_calls("cuMemMap") == maps) {
  }
  for (int pair = 0; pair < 1000; ++pair) {
    NEEDED(cachalot_malloc(allocator, 0, 1000, streams[1], &block));
    NEEDED(cachalot_free(allocator, block));
  }
  CHECK(!atomic_load(&slow.done));
  NEEDED(cachalot_range_commit(own, 0, 4 * PAGE, streams[1]));
  NEEDED(cachalot_range_decommit(own, 2 * PAGE, 2 * PAGE, streams[1]));
  CHECK(pthread_join(thread, NULL) == 0 && atomic_load(&slow.done));
  emu_plan_clear();
  NEEDED(cachalot_range_release(slow.range));
  NEEDED(cachalot_range_release(own));
}

int main(int count, char **arguments) {
  const char *const functions[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess"};
  const int codes[] = {2, 999}, first = 0;
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  cachalot_stream streams[2];
  if (count != 2) {
    fprintf(stderr, "usage: range_faults CONFIG\n");
    return 2;
  }
  DRIVER(cuInit(0));
  DRIVER(cuDevicePrimaryCtxRetain(&context, 0));
  DRIVER(cuCtxSetCurrent(context));
  for (int stream = 0; stream < 2; ++stream) {
    DRIVER(cuStreamCreate(&streams[stream], 1));
  }
  options.devices = &first;
  options.device_count = 1;
  options.config = arguments[1];
  NEEDED(cachalot_create(&options, &allocator));
  for (size_t function = 0; function < sizeof functions / sizeof functions[0]; ++function) {
    for (size_t code = 0; code < sizeof codes / sizeof codes[0]; ++code) {
      const int refused = failures_are_reported_and_undone(allocator, functions[function], codes[code], streams[0]);
      CHECK(refused > 0 || codes[code] == 2);
    }
  }
  no_page_is_lost(allocator, streams[0]);
  a_slow_commit_delays_no_request(allocator, streams);
  no_page_is_lost(allocator, streams[0]);
  NEEDED(cachalot_destroy(allocator));
  for (int stream = 0; stream < 2; ++stream) {
    DRIVER(cuStreamDestroy_v2(streams[stream]));
  }
  DRIVER(cuDevicePrimaryCtxRelease_v2(0));
  if (failures == 0) {
    puts("range_faults: well");
  }
  return failures == 0 ? 0 : 1;
}
