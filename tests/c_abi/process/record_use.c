/*
 * A block that a second stream reads, freed while the reading still waits. Reuse comes behind the reading and not behind
 * what follows it on the second stream, and no call waits. Runs on the emulated driver and on a GPU.
 *
 *   record_use CONFIG
 */
#include "../misuse/misuse.h"

#include <sched.h>

typedef unsigned long long address;

unsigned cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuDevicePrimaryCtxRelease_v2(int);
unsigned cuCtxSetCurrent(void *);
unsigned cuStreamCreate(cachalot_stream *, unsigned), cuStreamDestroy_v2(cachalot_stream);
unsigned cuStreamQuery(cachalot_stream), cuStreamSynchronize(cachalot_stream);
unsigned cuLaunchHostFunc(cachalot_stream, void (*)(void *), void *);
unsigned cuMemsetD8Async(address, unsigned char, size_t, cachalot_stream);
unsigned cuMemcpyDtoDAsync_v2(address, address, size_t, cachalot_stream);
unsigned cuMemAlloc_v2(address *, size_t), cuMemFree_v2(address), cuMemcpyDtoH_v2(void *, address, size_t);

enum { NON_BLOCKING = 1, NOT_READY = 600, BYTES = 24 << 20 };

#define DRIVER(call) NEEDED((int)(call))

static address number(const void *pointer) { return (address)(uintptr_t)pointer; }

/* Holds a stream until the flag is set. */
static void hold(void *flag) {
  while (!__atomic_load_n((int *)flag, __ATOMIC_ACQUIRE)) {
    sched_yield();
  }
}

static void release(int *flag) { __atomic_store_n(flag, 1, __ATOMIC_RELEASE); }

/* How many bytes of a copy differ from what is wanted. */
static size_t other_than(address copy, unsigned char wanted) {
  static unsigned char bytes[BYTES];
  size_t wrong = 0;
  DRIVER(cuMemcpyDtoH_v2(bytes, copy, BYTES));
  for (size_t at = 0; at < BYTES; ++at) {
    wrong += bytes[at] != wanted;
  }
  return wrong;
}

int main(int count, char **arguments) {
  void *context = NULL, *first = NULL, *second = NULL;
  address copy = 0;
  cachalot_stream own = NULL, side = NULL;
  cachalot_allocator *allocator = NULL;
  static int may_read, may_follow;
  if (count != 2) {
    fprintf(stderr, "usage: record_use CONFIG\n");
    return 2;
  }
  DRIVER(cuInit(0));
  DRIVER(cuDevicePrimaryCtxRetain(&context, 0));
  DRIVER(cuCtxSetCurrent(context));
  DRIVER(cuStreamCreate(&own, NON_BLOCKING));
  DRIVER(cuStreamCreate(&side, NON_BLOCKING));
  DRIVER(cuMemAlloc_v2(&copy, BYTES));

  /* There is memory for one block only. */
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  options.config = arguments[1];
  options.limit_bytes = BYTES;
  NEEDED(cachalot_create(&options, &allocator));
  NEEDED(cachalot_malloc(allocator, 0, BYTES, own, &first));
  DRIVER(cuMemsetD8Async(number(first), 0xaa, BYTES, own));
  DRIVER(cuStreamSynchronize(own));
  DRIVER(cuLaunchHostFunc(side, hold, &may_read));
  DRIVER(cuMemcpyDtoDAsync_v2(copy, number(first), BYTES, side));
  NEEDED(cachalot_record_use(allocator, first, side));
  DRIVER(cuLaunchHostFunc(side, hold, &may_follow));
  NEEDED(cachalot_free(allocator, first));

  /* The request gets the memory at once, and the stream waits in its place. */
  NEEDED(cachalot_malloc(allocator, 0, BYTES, own, &second));
  CHECK(second == first);
  DRIVER(cuMemsetD8Async(number(second), 0xbb, BYTES, own));
  CHECK(cuStreamQuery(own) == NOT_READY);
  release(&may_read);
  DRIVER(cuStreamSynchronize(own));
  CHECK(cuStreamQuery(side) == NOT_READY);
  release(&may_follow);
  DRIVER(cuStreamSynchronize(side));
  CHECK(other_than(copy, 0xaa) == 0);
  DRIVER(cuMemcpyDtoDAsync_v2(copy, number(second), BYTES, own));
  DRIVER(cuStreamSynchronize(own));
  CHECK(other_than(copy, 0xbb) == 0);

  NEEDED(cachalot_free(allocator, second));
  NEEDED(cachalot_destroy(allocator));
  DRIVER(cuMemFree_v2(copy));
  DRIVER(cuStreamDestroy_v2(side));
  DRIVER(cuStreamDestroy_v2(own));
  DRIVER(cuDevicePrimaryCtxRelease_v2(0));
  if (failures == 0) {
    puts("record_use: well");
  }
  return failures == 0 ? 0 : 1;
}
