/*
 * Streams that are destroyed without a report (CACHALOT_ASK_STREAM_ID): the allocator must not use
 * their handles, which may crash a real driver. To be run with CACHALOT_EMU_STRICT=1, which ends
 * the process at such a call.
 *
 *   unreported [CONFIG]
 */
#include <cachalot.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;
unsigned cuInit(unsigned), cuDevicePrimaryCtxRetain(handle *, int), cuDevicePrimaryCtxRelease_v2(int);
unsigned cuCtxSetCurrent(handle), cuStreamCreate(handle *, unsigned), cuStreamDestroy_v2(handle);
unsigned cuEventCreate(handle *, unsigned), cuEventRecord(handle, handle), cuEventDestroy_v2(handle);
unsigned cuStreamWaitEvent(handle, handle, unsigned);
unsigned cuMemsetD8Async(unsigned long long, unsigned char, size_t, handle);
unsigned emu_hold_stream(handle), emu_release_stream(handle);

#define CHECK(call)                                                                            \
  do {                                                                                         \
    const int code_ = (int)(call);                                                             \
    if (code_ != 0) {                                                                          \
      fprintf(stderr, "line %d: %s: %d: %s\n", __LINE__, #call, code_, cachalot_last_error()); \
      exit(1);                                                                                 \
    }                                                                                          \
  } while (0)

enum { BYTES = 4 << 20 };

static cachalot_allocator *allocator;

static handle stream(void) {
  handle made;
  CHECK(cuStreamCreate(&made, 1));
  return made;
}

static void *block_of(handle its) {
  void *block;
  CHECK(cachalot_malloc(allocator, 0, BYTES, its, &block));
  CHECK(cuMemsetD8Async((unsigned long long)(size_t)block, 1, BYTES, its));
  return block;
}

/* Orders later work on a stream behind the present work on another. */
static void order(handle later, handle earlier) {
  handle event;
  CHECK(cuEventCreate(&event, 2));
  CHECK(cuEventRecord(event, earlier));
  CHECK(cuStreamWaitEvent(later, event, 0));
  CHECK(cuEventDestroy_v2(event));
}

/* A block's own stream goes before the block, and behind it. */
static void own_streams(void) {
  handle first = stream(), second = stream();
  void *block = block_of(first);
  CHECK(cuStreamDestroy_v2(first));
  CHECK(cachalot_free(allocator, block));
  block = block_of(second);
  CHECK(cachalot_free(allocator, block));
  CHECK(cuStreamDestroy_v2(second));
  CHECK(cachalot_empty_cache(allocator, 0));
}

/* Another stream that uses a block is destroyed before the block is freed. Its work is waited for. */
static void other_streams(void) {
  const handle own = stream(), other = stream();
  void *block = block_of(own), *next;
  CHECK(emu_hold_stream(other));
  CHECK(cuMemsetD8Async((unsigned long long)(size_t)block, 2, BYTES, other));
  CHECK(cachalot_record_stream(allocator, block, other));
  CHECK(emu_release_stream(other));
  CHECK(cuStreamDestroy_v2(other));
  CHECK(cachalot_free(allocator, block));
  next = block_of(own);
  CHECK(cachalot_free(allocator, next));
  CHECK(cachalot_process_events(allocator, 0));
  CHECK(cachalot_empty_cache(allocator, 0));
  CHECK(cuStreamDestroy_v2(own));
}

/* Many streams come and go. */
static void many_streams(void) {
  for (int life = 0; life < 200; ++life) {
    const handle its = stream();
    CHECK(cachalot_free(allocator, block_of(its)));
    CHECK(cuStreamDestroy_v2(its));
  }
}

/* Upkeep, predictions and descriptions while free memory of streams that are gone is cached. */
static void upkeep(void) {
  const handle gone = stream(), own = stream();
  const size_t sizes[] = {BYTES, 3 * (size_t)BYTES};
  void *block = block_of(gone);
  CHECK(cachalot_free(allocator, block_of(own)));
  CHECK(cuStreamDestroy_v2(gone));
  CHECK(cachalot_free(allocator, block));
  for (int round = 0; round < 4; ++round) {
    cachalot_forecast outlook = CACHALOT_FORECAST_INIT;
    cachalot_fit fit = CACHALOT_FIT_INIT;
    CHECK(cachalot_maintain(allocator, 0, 5000, NULL));
    CHECK(cachalot_get_forecast(allocator, 0, 3 * (size_t)BYTES, own, &outlook));
    CHECK(cachalot_get_fit(allocator, 0, sizes, 2, own, &fit));
    CHECK(cachalot_trim(allocator, 0, BYTES));
    block = block_of(own);
    CHECK(cachalot_free(allocator, block));
  }
  CHECK(cuStreamDestroy_v2(own));
}

/* Streams that have used a range are destroyed before the range is used again, and before it is released. */
static void ranges(void) {
  enum { PAGE = 2 << 20 };
  cachalot_range range;
  for (int released_by_others = 0; released_by_others < 2; ++released_by_others) {
    const handle first = stream(), second = stream(), third = stream();
    void *base;
    CHECK(cachalot_range_reserve(allocator, 0, 8 * (size_t)PAGE, &range));
    base = range.base;
    CHECK(cachalot_range_commit(range, 0, 4 * (size_t)PAGE, first));
    CHECK(cuMemsetD8Async((unsigned long long)(size_t)base, 3, 4 * (size_t)PAGE, first));
    CHECK(cachalot_range_decommit(range, 0, 2 * (size_t)PAGE, first));
    CHECK(cuStreamDestroy_v2(first));
    CHECK(cachalot_range_commit(range, 0, 2 * (size_t)PAGE, second));
    CHECK(cuMemsetD8Async((unsigned long long)(size_t)base, 4, PAGE, second));
    CHECK(cachalot_free(allocator, block_of(third)));
    if (released_by_others) {
      order(third, second);
      CHECK(cachalot_range_decommit(range, 0, 4 * (size_t)PAGE, third));
    }
    CHECK(cuStreamDestroy_v2(second));
    CHECK(cachalot_range_release(range));
    CHECK(cachalot_free(allocator, block_of(third)));
    CHECK(cuStreamDestroy_v2(third));
  }
}

/* The memory of a pool is parked and wakes after a stream that has used it is gone. Not every configuration parks. */
static void parking(void) {
  enum { TAG = 7 };
  const handle gone = stream(), own = stream();
  cachalot_pool pool;
  void *blocks[2];
  CHECK(cachalot_pool_create(allocator, 0, 0, &pool));
  if (cachalot_pool_set_tag(allocator, 0, pool, TAG) == CACHALOT_OK) {
    CHECK(cachalot_pool_begin(allocator, 0, pool, CACHALOT_ROUTE_ALL, NULL));
    blocks[0] = block_of(gone);
    blocks[1] = block_of(own);
    CHECK(cachalot_pool_end(allocator, 0, pool));
    CHECK(cachalot_pool_release(allocator, 0, pool));
    CHECK(cuStreamDestroy_v2(gone));
    const cachalot_park_target target = {sizeof target, TAG, NULL, CACHALOT_PARK_TAG, 0};
    const cachalot_park_options options = {sizeof options, CACHALOT_PARK_KEEP, CACHALOT_PARK_AFTER_STREAMS};
    CHECK(cachalot_park(allocator, 0, &target, &options));
    CHECK(cachalot_free(allocator, block_of(own)));
    CHECK(cachalot_wake(allocator, 0, &target));
    CHECK(cachalot_free(allocator, blocks[0]));
    CHECK(cachalot_free(allocator, blocks[1]));
  } else {
    CHECK(cuStreamDestroy_v2(gone));
  }
  CHECK(cachalot_pool_release(allocator, 0, pool));
  CHECK(cuStreamDestroy_v2(own));
}

/* A stream that copies from a pinned block of the host is destroyed before the block is freed. */
static void pinned(void) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *host;
  const handle copies = stream();
  void *block, *next;
  options.flags = CACHALOT_ASK_STREAM_ID | CACHALOT_HOST;
  CHECK(cachalot_create(&options, &host));
  CHECK(cachalot_malloc(host, 0, BYTES, NULL, &block));
  CHECK(cachalot_record_stream(host, block, copies));
  CHECK(cuStreamDestroy_v2(copies));
  CHECK(cachalot_free(host, block));
  CHECK(cachalot_malloc(host, 0, BYTES, NULL, &next));
  CHECK(cachalot_free(host, next));
  CHECK(cachalot_process_events(host, 0));
  CHECK(cachalot_empty_cache(host, 0));
  CHECK(cachalot_check_invariants(host));
  CHECK(cachalot_destroy(host));
}

int main(int argc, char **argv) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  handle context;
  CHECK(cuInit(0));
  CHECK(cuDevicePrimaryCtxRetain(&context, 0));
  CHECK(cuCtxSetCurrent(context));
  options.flags = CACHALOT_ASK_STREAM_ID;
  options.config = argc > 1 ? argv[1] : NULL;
  CHECK(cachalot_create(&options, &allocator));
  own_streams();
  other_streams();
  many_streams();
  upkeep();
  ranges();
  parking();
  CHECK(cachalot_check_invariants(allocator));
  CHECK(cachalot_destroy(allocator));
  pinned();
  CHECK(cuDevicePrimaryCtxRelease_v2(0));
  puts("unreported: well");
  return 0;
}
