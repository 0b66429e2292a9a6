/*
 * Managed memory for PyTorch's CUDAPluggableAllocator, without prefetch or advice, and a ballast: device memory that nothing can move,
 * so that managed memory has what the ballast leaves. Managed memory itself knows no limit.
 *
 *   cc -O1 -shared -fPIC managed.c -o libmanaged.so -ldl
 */
#include <dlfcn.h>
#include <stddef.h>

typedef unsigned long long address;
typedef int managed_function(address *, size_t, unsigned);
typedef int plain_function(address *, size_t);
typedef int free_function(address);

enum { ATTACH_GLOBAL = 1 };

static void *of_driver(const char *name) {
  static void *driver;
  if (driver == NULL) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
  }
  return driver == NULL ? NULL : dlsym(driver, name);
}

void *managed_malloc(ptrdiff_t bytes, int device, void *stream) {
  managed_function *allocate = (managed_function *)of_driver("cuMemAllocManaged");
  address at = 0;
  (void)device, (void)stream;
  return bytes > 0 && allocate != NULL && allocate(&at, (size_t)bytes, ATTACH_GLOBAL) == 0 ? (void *)at : NULL;
}

void managed_free(void *at, ptrdiff_t bytes, int device, void *stream) {
  free_function *release = (free_function *)of_driver("cuMemFree_v2");
  (void)bytes, (void)device, (void)stream;
  if (at != NULL && release != NULL) {
    release((address)at);
  }
}

/* Takes memory of the device, in place of what an earlier call took. Returns the driver's code. */
int ballast(size_t bytes) {
  static address at;
  plain_function *allocate = (plain_function *)of_driver("cuMemAlloc_v2");
  managed_free((void *)at, 0, 0, NULL);
  at = 0;
  if (bytes == 0) {
    return 0;
  }
  return allocate == NULL ? -1 : allocate(&at, bytes);
}
