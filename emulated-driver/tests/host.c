/* A C program as it would be written for a GPU, linked with -lcuda: threads, streams, events, memory. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long long u64;
typedef void *handle;

unsigned cuInit(unsigned);
unsigned cuDevicePrimaryCtxRetain(handle *, int);
unsigned cuDevicePrimaryCtxRelease_v2(int);
unsigned cuCtxSetCurrent(handle);
unsigned cuMemAlloc_v2(u64 *, size_t);
unsigned cuMemFree_v2(u64);
unsigned cuMemsetD8Async(u64, unsigned char, size_t, handle);
unsigned cuMemcpyDtoH_v2(void *, u64, size_t);
unsigned cuStreamCreate(handle *, unsigned);
unsigned cuStreamDestroy_v2(handle);
unsigned cuStreamSynchronize(handle);
unsigned cuStreamWaitEvent(handle, handle, unsigned);
unsigned cuEventCreate(handle *, unsigned);
unsigned cuEventDestroy_v2(handle);
unsigned cuEventRecord(handle, handle);
unsigned cuEventQuery(handle);
unsigned cuEventSynchronize(handle);
unsigned cuLaunchHostFunc(handle, void (*)(void *), void *);

#define CHECK(call)                                              \
  do {                                                           \
    const unsigned code = (call);                                \
    if (code != 0) {                                             \
      fprintf(stderr, "%s: %u at line %d\n", #call, code, __LINE__); \
      exit(1);                                                   \
    }                                                            \
  } while (0)

static handle context;

static void count(void *argument) { ++*(int *)argument; }

static void *work(void *argument) {
  const unsigned char value = (unsigned char)(size_t)argument;
  handle first, second, event;
  int counted = 0;
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuStreamCreate(&first, 1));
  CHECK(cuStreamCreate(&second, 0));
  CHECK(cuEventCreate(&event, 2));
  for (int round = 0; round < 20; ++round) {
    u64 address;
    unsigned char bytes[16];
    unsigned answer;
    CHECK(cuMemAlloc_v2(&address, (size_t)4096 << (round % 11)));
    CHECK(cuMemsetD8Async(address, value, 4096, first));
    CHECK(cuEventRecord(event, first));
    CHECK(cuStreamWaitEvent(second, event, 0));
    CHECK(cuLaunchHostFunc(second, count, &counted));
    answer = cuEventQuery(event);
    if (answer != 0 && answer != 600) exit(2);
    CHECK(cuEventSynchronize(event));
    CHECK(cuMemcpyDtoH_v2(bytes, address, sizeof bytes));
    if (bytes[0] != value || bytes[15] != value) exit(3);
    CHECK(cuMemFree_v2(address));
  }
  CHECK(cuStreamSynchronize(second));
  if (counted != 20) exit(4);
  CHECK(cuEventDestroy_v2(event));
  CHECK(cuStreamDestroy_v2(first));
  CHECK(cuStreamDestroy_v2(second));
  return NULL;
}

int main(void) {
  pthread_t threads[4];
  CHECK(cuInit(0));
  CHECK(cuDevicePrimaryCtxRetain(&context, 0));
  for (size_t index = 0; index < 4; ++index) pthread_create(&threads[index], NULL, work, (void *)(index + 1));
  for (size_t index = 0; index < 4; ++index) pthread_join(threads[index], NULL);
  CHECK(cuDevicePrimaryCtxRelease_v2(0));
  puts("well");
  return 0;
}
