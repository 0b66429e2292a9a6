/*
 * The context is lost under an allocator, on the emulated driver: what needs the driver says so from then on and does
 * not call it, what does not goes on, and the allocator can still be destroyed.
 */
#include "../misuse/misuse.h"

static int (*break_context)(int, uint32_t);

int main(int argc, char **argv) {
  const char *path = getenv("CACHALOT_LIBCUDA");
  void *library;
  void *block = NULL, *more = NULL;
  unsigned long long calls;
  scene it;
  begin(argc, argv);
  it = scene_open();
  NEEDED(cachalot_check_health(it.allocator, 0));
  library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  CHECK(library != NULL);
  *(void **)&break_context = dlsym(library, "emu_lose_device");
  NEEDED(break_context(0, 700));

  /* The first call that needs the driver finds out. */
  CHECK(cachalot_malloc(it.allocator, 0, 200 << 20, NULL, &block) == CACHALOT_ERROR_CONTEXT_LOST);
  CHECK(cachalot_last_driver_code() == 700 && block == NULL);
  CHECK(cachalot_check_health(it.allocator, 0) == CACHALOT_ERROR_CONTEXT_LOST && cachalot_last_driver_code() == 700);
  calls = driver_calls();
  CHECK(cachalot_malloc(it.allocator, 0, 5000, NULL, &more) == CACHALOT_ERROR_CONTEXT_LOST);
  CHECK(cachalot_malloc(it.allocator, 0, 200 << 20, NULL, &more) == CACHALOT_ERROR_CONTEXT_LOST);
  CHECK(cachalot_free(it.allocator, it.small) == CACHALOT_OK);
  CHECK(cachalot_free(it.allocator, it.large) == CACHALOT_OK);
  CHECK(cachalot_empty_cache(it.allocator, 0) == CACHALOT_ERROR_CONTEXT_LOST);
  CHECK(cachalot_check_invariants(it.allocator) == CACHALOT_OK);
  CHECK(driver_calls() == calls);
  if (it.devices > 1) {
    /* The other device is well. */
    NEEDED(cachalot_check_health(it.allocator, 1));
    NEEDED(cachalot_malloc(it.allocator, 1, 5000, NULL, &more));
    NEEDED(cachalot_free(it.allocator, more));
  }
  CHECK(cachalot_destroy(it.allocator) == CACHALOT_ERROR_CONTEXT_LOST);
  CHECK(cachalot_destroy(it.allocator) == CACHALOT_ERROR_INVALID_HANDLE);
  return failures != 0;
}
