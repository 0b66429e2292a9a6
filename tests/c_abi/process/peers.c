/*
 * Memory of a device that kernels of another device use: opened to all devices from the start, or to one later; and devices in
 * contexts of the program. On the emulated driver, whose devices can reach each other unless told otherwise.
 */
#include "streams.h"

static uint64_t (*calls)(const char *);

static uint64_t opened(void) {
  return calls("cuCtxEnablePeerAccess");
}

int main(void) {
  const int devices[] = {0, 1};
  void *contexts[] = {NULL, NULL};
  int (*answer)(const char *, unsigned);
  int (*create)(void **, unsigned, int), (*destroy)(void *);
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  void *library, *block = NULL;
  uint64_t before;
  options.flags = CACHALOT_PEER_ACCESS;
  NEEDED(cachalot_create(&options, &allocator));
  library = dlopen(getenv("CACHALOT_LIBCUDA"), RTLD_LAZY | RTLD_NOLOAD);
  CHECK(library != NULL);
  *(void **)&calls = dlsym(library, "emu_calls");
  *(void **)&answer = dlsym(library, "emu_answer");
  *(void **)&create = dlsym(library, "cuCtxCreate_v2");
  *(void **)&destroy = dlsym(library, "cuCtxDestroy_v2");
  CHECK(opened() == 2);
  NEEDED(cachalot_destroy(allocator));

  /* Devices that cannot reach each other work apart. */
  NEEDED(answer("can_access_peer", 0));
  NEEDED(cachalot_create(&options, &allocator));
  CHECK(opened() == 2);
  CHECK(cachalot_enable_peer_access(allocator, 1, 0) == CACHALOT_ERROR_UNSUPPORTED);
  NEEDED(cachalot_destroy(allocator));
  NEEDED(answer("can_access_peer", 1));

  /* Pinned memory of the host is every device's. */
  options.flags = CACHALOT_HOST;
  NEEDED(cachalot_create(&options, &allocator));
  NEEDED(cachalot_enable_peer_access(allocator, 1, 0));
  CHECK(opened() == 2);
  NEEDED(cachalot_destroy(allocator));

  options.flags = 0;
  NEEDED(cachalot_create(&options, &allocator));
  CHECK(opened() == 2);
  NEEDED(cachalot_enable_peer_access(allocator, 1, 1));
  CHECK(opened() == 2);
  NEEDED(cachalot_enable_peer_access(allocator, 1, 0));
  CHECK(opened() == 3);
  NEEDED(cachalot_destroy(allocator));

  /* The primary context of the first device, and one of the program's for the second. */
  find_driver();
  NEEDED(create(&contexts[1], 0, 1));
  NEEDED(cuda.set_current(NULL));
  before = calls("cuDevicePrimaryCtxRetain");
  options.device_count = 2;
  options.devices = devices;
  options.contexts = contexts;
  NEEDED(cachalot_create(&options, &allocator));
  CHECK(calls("cuDevicePrimaryCtxRetain") == before + 1);
  NEEDED(cachalot_malloc(allocator, 1, 1000, NULL, &block));
  NEEDED(cachalot_free(allocator, block));
  NEEDED(cachalot_destroy(allocator));
  NEEDED(destroy(contexts[1]));
  return failures != 0;
}
