/*
 * A program linked with -lcuda, -lcudart and -lnvidia-ml. The argument names what it does: `device` prints the devices, their
 * memory and their compute capability; `hold PROGRAM` takes 64 MiB and runs a program; `kernel` loads what is no code for the
 * host; `runtime` takes memory by the runtime; `nvml` prints the name of device 0 and the bytes of its processes; `end` ends
 * by a signal.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

int cuInit(unsigned);
int cuDeviceGetCount(int *);
int cuDeviceTotalMem_v2(size_t *, int);
int cuDeviceGetAttribute(int *, int, int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uint64_t *, size_t);
int cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuCtxSynchronize(void);
int cudaMalloc(void **, size_t);
int cudaMemGetInfo(size_t *, size_t *);
int nvmlInit_v2(void);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetName(void *, char *, unsigned);
int nvmlDeviceGetComputeRunningProcesses_v3(void *, unsigned *, void *);

#ifdef WITH_KERNELS
/* As nvcc places the machine code of a GPU. */
__attribute__((section(".nv_fatbin"), used)) static const char code[] = "machine code";
#endif

static void enter(void) {
  void *context = NULL;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) {
    exit(9);
  }
}

int main(int count, char **arguments) {
  const char *what = count > 1 ? arguments[1] : "";
  if (strcmp(what, "device") == 0) {
    int devices = 0, major = 0, minor = 0;
    size_t bytes = 0;
    enter();
    cuDeviceGetCount(&devices);
    cuDeviceTotalMem_v2(&bytes, 0);
    cuDeviceGetAttribute(&major, 75, 0);
    cuDeviceGetAttribute(&minor, 76, 0);
    printf("%d devices of %zu MiB, %d.%d\n", devices, bytes >> 20, major, minor);
    return 7;
  }
  if (strcmp(what, "hold") == 0) {
    uint64_t address = 0;
    enter();
    printf("%d\n", cuMemAlloc_v2(&address, 64 << 20));
    fflush(stdout);
    return WEXITSTATUS(system(arguments[2]));
  }
  if (strcmp(what, "kernel") == 0) {
    void *module = NULL, *function = NULL;
    enter();
    const int loaded = cuModuleLoadData(&module, "machine code of a GPU");
    const int found = loaded ? -1 : cuModuleGetFunction(&function, module, "kernel");
    const int launched = found ? -1 : cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    printf("%d %d %d\n", loaded, found, launched ? launched : cuCtxSynchronize());
  }
  if (strcmp(what, "runtime") == 0) {
    void *memory = NULL;
    size_t left = 0, all = 0;
    const int taken = cudaMalloc(&memory, 32 << 20);
    const int told = cudaMemGetInfo(&left, &all);
    printf("%d %d %zu\n", taken, told, (all - left) >> 20);
  }
  if (strcmp(what, "nvml") == 0) {
    struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } list[8];
    char name[96] = "";
    unsigned processes = 8;
    void *device = NULL;
    const int begun = nvmlInit_v2();
    const int found = nvmlDeviceGetHandleByIndex_v2(0, &device);
    const int named = nvmlDeviceGetName(device, name, sizeof name);
    const int listed = nvmlDeviceGetComputeRunningProcesses_v3(device, &processes, list);
    printf("%d %d %d %d %s", begun, found, named, listed, name);
    for (unsigned index = 0; index < processes; ++index) {
      printf(" %llu MiB", list[index].used >> 20);
    }
    puts("");
  }
  if (strcmp(what, "end") == 0) {
    raise(SIGTERM);
  }
  return 0;
}
