/* Prints what NVML tells of device 0 in MiB, before the program uses it and with 60 MiB of it: total, used and free by each of the two
 * functions, and the total of the mapped memory, which is no memory of the device's. The argument is how NVML is opened; without one,
 * the program links it. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

typedef struct { unsigned long long total, free, used; } first;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } second;
typedef int begin(void);
typedef int find(unsigned, void **);
typedef int tell(void *, void *);
typedef int start(unsigned);
typedef int create(void **, unsigned, int);
typedef int take(unsigned long long *, size_t);

#ifdef LINKED
begin nvmlInit_v2;
find nvmlDeviceGetHandleByIndex_v2;
tell nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo_v2, nvmlDeviceGetBAR1MemoryInfo;
#define FUNCTION(type, name) ((void)library, name)
#else
#define FUNCTION(type, name) ((type *)dlsym(library, #name))
#endif

static int print(void *library, void *device) {
    first one, bar;
    second two = {.version = sizeof(second) | 2 << 24};
    if (FUNCTION(tell, nvmlDeviceGetMemoryInfo)(device, &one) || FUNCTION(tell, nvmlDeviceGetMemoryInfo_v2)(device, &two) ||
        FUNCTION(tell, nvmlDeviceGetBAR1MemoryInfo)(device, &bar)) {
        return 1;
    }
    printf("%llu %llu %llu", one.total >> 20, one.used >> 20, one.free >> 20);
    printf(" | %llu %llu %llu | %llu\n", two.total >> 20, two.used >> 20, two.free >> 20, bar.total >> 20);
    return two.reserved + two.used + two.free != two.total || one.used + one.free != one.total;
}

int main(int count, char **arguments) {
    void *library = count > 1 ? dlopen(arguments[1], RTLD_LAZY) : NULL, *device, *context;
    if (count > 1 && library == NULL) {
        printf("%s\n", dlerror());
        return 1;
    }
    if (FUNCTION(begin, nvmlInit_v2)() || FUNCTION(find, nvmlDeviceGetHandleByIndex_v2)(0, &device) || print(library, device)) {
        return 2;
    }
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    unsigned long long address;
    if (((start *)dlsym(driver, "cuInit"))(0) || ((create *)dlsym(driver, "cuCtxCreate_v2"))(&context, 0, 0) ||
        ((take *)dlsym(driver, "cuMemAlloc_v2"))(&address, 60 << 20)) {
        return 3;
    }
    return print(library, device);
}
