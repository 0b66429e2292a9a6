/* A library that counts a program's memory, as others that limit memory do: a `dlsym` that answers with the functions of this file,
 * which call the driver by its name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef void *find(void *, const char *);
typedef int take(unsigned long long *, size_t);
typedef int size(size_t *, int);

static find *of_system(void) { return (find *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"); }

static void *of_driver(const char *name) { return of_system()(dlopen("libcuda.so.1", RTLD_NOW), name); }

static size_t counted;

static int take_counted(unsigned long long *address, size_t bytes) {
    counted += bytes;
    return ((take *)of_driver("cuMemAlloc_v2"))(address, bytes);
}

static int size_of_device(size_t *bytes, int device) { return ((size *)of_driver("cuDeviceTotalMem_v2"))(bytes, device); }

void *dlsym(void *library, const char *name) {
    if (!strcmp(name, "cuMemAlloc_v2")) {
        return (void *)take_counted;
    }
    return !strcmp(name, "cuDeviceTotalMem_v2") ? (void *)size_of_device : of_system()(library, name);
}

__attribute__((destructor)) static void tell(void) {
    if (counted > 0) {
        fprintf(stderr, "counted %zu MiB\n", counted >> 20);
    }
}
