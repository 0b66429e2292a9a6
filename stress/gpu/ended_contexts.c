/* Contexts that end with memory in them, again and again: what the device holds afterwards, by the management library, which no
 * library in front of the driver changes.
 *
 *   cc -std=c11 -O2 -o ended_contexts stress/gpu/ended_contexts.c -ldl
 *   cachalot run --policy stitched -- ./ended_contexts reset 100 "--policy stitched"
 *
 * Each round allocates 1 GiB, writes to it, and ends the context: `reset` and `release` end the primary context, `destroy` ends
 * another one. Prints a line of CSV: how, the options, the rounds, and the MiB in use on the device before, after the first round
 * and after the last. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES (1ull << 30)
typedef unsigned long long u64;
typedef int (*function)();

static void *driver, *management;

static function find(void *library, const char *name) {
  function found;
  *(void **)&found = dlsym(library, name);
  if (!found) {
    fprintf(stderr, "there is no %s\n", name);
    exit(1);
  }
  return found;
}

static void check(int status, const char *what) {
  if (status) {
    fprintf(stderr, "%s: %d\n", what, status);
    exit(1);
  }
}

#define DRIVER(name, ...) check(find(driver, #name)(__VA_ARGS__), #name)

/* Returns the MiB in use on the device, of every process. */
static u64 in_use(void) {
  u64 memory[3];
  void *device;
  check(find(management, "nvmlDeviceGetHandleByIndex_v2")(0, &device), "nvmlDeviceGetHandleByIndex");
  check(find(management, "nvmlDeviceGetMemoryInfo")(device, memory), "nvmlDeviceGetMemoryInfo");
  return memory[2] >> 20;
}

static void fill(void) {
  u64 address;
  DRIVER(cuMemAlloc_v2, &address, (size_t)BYTES);
  DRIVER(cuMemsetD8_v2, address, 1, (size_t)BYTES);
  DRIVER(cuCtxSynchronize);
}

static void primary(void) {
  void *context;
  DRIVER(cuDevicePrimaryCtxRetain, &context, 0);
  DRIVER(cuCtxSetCurrent, context);
}

static void round_of(const char *how) {
  if (!strcmp(how, "destroy")) {
    void *own;
    DRIVER(cuCtxCreate_v2, &own, 0, 0);
    fill();
    DRIVER(cuCtxDestroy_v2, own);
  } else if (!strcmp(how, "reset")) {
    primary();
    fill();
    DRIVER(cuDevicePrimaryCtxReset_v2, 0);
  } else {
    primary();
    fill();
    DRIVER(cuDevicePrimaryCtxRelease_v2, 0);
  }
}

int main(int count, char **arguments) {
  const long rounds = count > 2 ? atol(arguments[2]) : 0;
  const char *how = count > 1 ? arguments[1] : "";
  driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  management = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (!driver || !management || rounds < 1 || (strcmp(how, "destroy") && strcmp(how, "reset") && strcmp(how, "release"))) {
    fprintf(stderr, "usage: ended_contexts destroy|reset|release ROUNDS [OPTIONS], on a GPU\n");
    return 2;
  }
  DRIVER(cuInit, 0);
  check(find(management, "nvmlInit_v2")(), "nvmlInit");
  u64 before = in_use(), first = 0;
  for (long i = 0; i < rounds; i++) {
    round_of(how);
    if (i == 0) {
      first = in_use();
    }
  }
  printf("%s,\"%s\",%ld,%llu,%llu,%llu\n", how, count > 3 ? arguments[3] : "", rounds, before, first, in_use());
  return 0;
}
