// Opens the driver by the absolute path of its file, requests memory, and prints a sum of what comes back.
//
// usage: absolute PATH
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>

typedef int (*init_fn)(unsigned);
typedef int (*get_fn)(int *, int);
typedef int (*retain_fn)(void **, int);
typedef int (*set_fn)(void *);
typedef int (*alloc_fn)(uint64_t *, size_t);
typedef int (*free_fn)(uint64_t);
typedef int (*set8_fn)(uint64_t, unsigned char, size_t);
typedef int (*to_host_fn)(void *, uint64_t, size_t);

static void *named(void *library, const char *name) {
  void *found = dlsym(library, name);
  EXPECT(found != NULL);
  return found;
}

int main(int argc, char **argv) {
  void *library = dlopen(argc > 1 ? argv[1] : "/usr/lib/x86_64-linux-gnu/libcuda.so.1", RTLD_NOW);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  alloc_fn alloc = (alloc_fn)named(library, "cuMemAlloc_v2");
  free_fn release = (free_fn)named(library, "cuMemFree_v2");
  set8_fn set8 = (set8_fn)named(library, "cuMemsetD8_v2");
  to_host_fn to_host = (to_host_fn)named(library, "cuMemcpyDtoH_v2");
  int device;
  void *context;
  CHECK(((init_fn)named(library, "cuInit"))(0));
  CHECK(((get_fn)named(library, "cuDeviceGet"))(&device, 0));
  CHECK(((retain_fn)named(library, "cuDevicePrimaryCtxRetain"))(&context, device));
  CHECK(((set_fn)named(library, "cuCtxSetCurrent"))(context));
  uint64_t state = 7, sum = 0;
  for (int round = 0; round < 2000; round++) {
    size_t bytes = 1 + next_number(&state) % (1 << (next_number(&state) % 22));
    uint64_t block;
    unsigned char byte = 0;
    CHECK(alloc(&block, bytes));
    CHECK(set8(block, (unsigned char)round, bytes));
    CHECK(to_host(&byte, block + bytes - 1, 1));
    CHECK(release(block));
    sum = sum * 31 + byte;
  }
  printf("absolute %llx\n", (unsigned long long)sum);
  return 0;
}
