// Creates and maps memory by itself, pauses, forks, and checks every byte: a program whose memory may be parked during the pause.
//
// usage: maps PAUSE_MS
#include "driver.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long long number;
enum { PAGE = 2 << 20 };

// CUmemAllocationProp of pinned memory on device 0, with file descriptors.
static const struct {
  int kind, handles, location_kind, location;
  void *unused;
  unsigned char flags[8];
} PROPERTIES = {1, 1, 1, 0, NULL, {0}};

// CUmemAccessDesc: device 0 reads and writes.
static const struct {
  int location_kind, location, flags;
} ACCESS = {1, 0, 3};

static int (*reserve)(number *, size_t, size_t, number, number), (*unreserve)(number, size_t);
static int (*create)(number *, size_t, const void *, number), (*release)(number);
static int (*map)(number, size_t, size_t, number, number), (*unmap)(number, size_t);
static int (*allow)(number, size_t, const void *, size_t);
static int (*fill)(number, unsigned char, size_t), (*copy)(void *, number, size_t);

static void check(int code, const char *what) {
  if (code) {
    printf("%s: %d\n", what, code);
    exit(1);
  }
}

static number mapped(number handle, size_t bytes) {
  number address;
  check(reserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve");
  check(map(address, bytes, 0, handle, 0), "cuMemMap");
  check(allow(address, bytes, &ACCESS, 1), "cuMemSetAccess");
  return address;
}

static void equal(number address, size_t bytes, unsigned char byte) {
  unsigned char *host = malloc(bytes);
  check(copy(host, address, bytes), "cuMemcpyDtoH");
  for (size_t at = 0; at < bytes; at++)
    if (host[at] != byte) {
      printf("byte %zu of %d: %d\n", at, byte, host[at]);
      exit(1);
    }
  free(host);
}

int main(int argc, char **argv) {
  int pause_ms = argc > 1 ? atoi(argv[1]) : 5;
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) return 1;
  int (*init)(unsigned) = function("cuInit");
  int (*retain)(void **, int) = function("cuDevicePrimaryCtxRetain");
  int (*set)(void *) = function("cuCtxSetCurrent");
  int (*wait_for_all)(void) = function("cuCtxSynchronize");
  reserve = function("cuMemAddressReserve");
  unreserve = function("cuMemAddressFree");
  create = function("cuMemCreate");
  release = function("cuMemRelease");
  map = function("cuMemMap");
  unmap = function("cuMemUnmap");
  allow = function("cuMemSetAccess");
  fill = function("cuMemsetD8_v2");
  copy = function("cuMemcpyDtoH_v2");
  void *context;
  check(init(0), "cuInit");
  check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
  check(set(context), "cuCtxSetCurrent");

  // Mapped at two addresses, released while mapped, and filled without a mapping since.
  number twice, released, unmapped;
  check(create(&twice, 3 * PAGE, &PROPERTIES, 0), "cuMemCreate");
  check(create(&released, PAGE, &PROPERTIES, 0), "cuMemCreate");
  check(create(&unmapped, 2 * PAGE, &PROPERTIES, 0), "cuMemCreate");
  number first = mapped(twice, 3 * PAGE), second = mapped(twice, 3 * PAGE), third = mapped(released, PAGE);
  number fourth = mapped(unmapped, 2 * PAGE);
  check(release(released), "cuMemRelease");
  check(fill(first, 1, 3 * PAGE), "cuMemsetD8");
  check(fill(third, 2, PAGE), "cuMemsetD8");
  check(fill(fourth, 3, 2 * PAGE), "cuMemsetD8");
  check(wait_for_all(), "cuCtxSynchronize");
  check(unmap(fourth, 2 * PAGE), "cuMemUnmap");
  usleep((unsigned)pause_ms * 1000);

  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    // The driver works in no forked child, and the parent's memory is not the child's to end.
    _exit(unmap(first, 3 * PAGE) != 0 && release(twice) != 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  if (status != 0) printf("the child: %d\n", status);

  equal(second, 3 * PAGE, 1);
  equal(third, PAGE, 2);
  check(map(fourth, 2 * PAGE, 0, unmapped, 0), "cuMemMap");
  check(allow(fourth, 2 * PAGE, &ACCESS, 1), "cuMemSetAccess");
  equal(fourth, 2 * PAGE, 3);
  check(fill(first, 4, PAGE), "cuMemsetD8");
  equal(second, PAGE, 4);

  check(unmap(first, 3 * PAGE), "cuMemUnmap");
  check(unmap(second, 3 * PAGE), "cuMemUnmap");
  check(unmap(third, PAGE), "cuMemUnmap");
  check(unmap(fourth, 2 * PAGE), "cuMemUnmap");
  check(release(twice), "cuMemRelease");
  check(release(unmapped), "cuMemRelease");
  check(release(twice) ? 0 : -1, "cuMemRelease again");
  check(unreserve(first, 3 * PAGE), "cuMemAddressFree");
  printf("equal\n");
  return 0;
}
