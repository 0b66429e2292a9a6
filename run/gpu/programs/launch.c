// The time that the library in front of the driver adds to a launch: a process calls both in turn, the library and the driver itself.
//
// Prints `name;nanoseconds` of the launch through the library less the launch at the driver: the median of pairs of rounds that
// follow each other, and the quartiles. Under `cachalot run` the driver itself has another name; without it both are the same, and
// the figures tell how exact the measurement is.
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CHECK(call)                                                    \
  do {                                                                 \
    CUresult status = (call);                                          \
    if (status) {                                                      \
      fprintf(stderr, "%s:%d: error %d\n", __FILE__, __LINE__, status); \
      return 1;                                                        \
    }                                                                  \
  } while (0)

typedef CUresult (*Launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);

enum { PAIRS = 4001 };

static const char KERNEL[] = ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry nothing() { ret; }\n";

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e9 + time.tv_nsec;
}

static int by_size(const void *one, const void *other) {
  double difference = *(const double *)one - *(const double *)other;
  return (difference > 0) - (difference < 0);
}

// Nanoseconds of a launch of `blocks` blocks, of `count` in a row.
static double timed(Launch launch, CUfunction kernel, CUstream stream, unsigned blocks, int count) {
  double begin = now();
  for (int i = 0; i < count; i++) launch(kernel, blocks, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
  return (now() - begin) / count;
}

static void compare(const char *name, Launch library, Launch driver, CUfunction kernel, CUstream stream, unsigned blocks, int count) {
  static double added[PAIRS], plain[PAIRS];
  for (int i = 0; i < PAIRS; i++) {
    // The first of a pair takes turns, since each round leaves work to the next.
    double one = 0, other = 0;
    for (int turn = 0; turn < 2; turn++) {
      if ((turn ^ i) & 1)
        one = timed(library, kernel, stream, blocks, count);
      else
        other = timed(driver, kernel, stream, blocks, count);
      cuStreamSynchronize(stream);
    }
    added[i] = one - other;
    plain[i] = other;
  }
  qsort(added, PAIRS, sizeof *added, by_size);
  qsort(plain, PAIRS, sizeof *plain, by_size);
  printf("%s, added;%.1f (%.1f to %.1f)\n", name, added[PAIRS / 2], added[PAIRS / 4], added[3 * PAIRS / 4]);
  printf("%s, at the driver;%.1f\n", name, plain[PAIRS / 2]);
}

int main(void) {
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction kernel;
  CUstream stream;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuModuleLoadData(&module, KERNEL));
  CHECK(cuModuleGetFunction(&kernel, module, "nothing"));
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  Launch library = (Launch)dlsym(RTLD_DEFAULT, "cuLaunchKernel");
  void *alias = dlopen("libcachalot-driver.so.1", RTLD_NOW | RTLD_NOLOAD);
  Launch driver = alias ? (Launch)dlsym(alias, "cuLaunchKernel") : library;
  if (!library || !driver) return 1;
  printf("the two are;%s\n", library == driver ? "one" : "different");
  compare("launch", library, driver, kernel, stream, 1, 100);
  // Refused before any work: what is left is the way to the driver.
  compare("launch of no blocks", library, driver, kernel, stream, 0, 1000);
  return 0;
}
