/* A driver that finds the driver itself by an absolute path, as a loader for several hosts does. */
#include <dlfcn.h>
#include <stdlib.h>

static void *next(const char *name) {
    void *driver = dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL);
    void *found = driver ? dlsym(driver, name) : NULL;
    if (found == NULL) {
        exit(7);
    }
    return found;
}

#define PASS(name)                                                                                                       \
    long name(long a, long b, long c, long d) { return ((long (*)(long, long, long, long))next(#name))(a, b, c, d); }

PASS(cuInit)
PASS(cuDriverGetVersion)
PASS(cuCtxCreate_v2)
PASS(cuMemAlloc_v2)
PASS(cuMemFree_v2)
PASS(cuMemGetInfo_v2)
