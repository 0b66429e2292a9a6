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
  CHECK(cachalot_check(allocator));
  CHECK(cachalot_destroy(allocator));
  CHECK(cuDevicePrimaryCtxRelease_v2(0));
  puts("unreported: well");
  return 0;
}
