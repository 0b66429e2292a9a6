/*
 * How much of the host serves where the device has no more: requests blocks of 20 MiB until one is refused, and prints
 * how many MiB lie on the host then, and why there is no more.
 *
 *   spill_bounds CONFIG
 */
#include "../misuse/misuse.h"

enum { MOST = 40 };
#define BYTES ((size_t)20 << 20)

static int find_spilled(void *userdata, const char *name, int64_t value) {
  if (strcmp(name, "pages.spilled_bytes") == 0) {
    *(int64_t *)userdata = value;
  }
  return 0;
}

int main(int argc, char **argv) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  void *blocks[MOST];
  cachalot_status status = CACHALOT_OK;
  int64_t spilled = -1;
  int count = 0;
  options.config = argv[argc - 1];
  NEEDED(cachalot_create(&options, &allocator));
  while (count < MOST && (status = cachalot_malloc(allocator, 0, BYTES, NULL, &blocks[count])) == CACHALOT_OK) {
    ++count;
  }
  CHECK(count == MOST || status == CACHALOT_ERROR_OUT_OF_MEMORY);
  NEEDED(cachalot_visit_statistics(allocator, 0, find_spilled, &spilled));
  printf("%d\n%s\n", (int)(spilled >> 20), count == MOST ? "served" : cachalot_last_error());
  while (count > 0) {
    NEEDED(cachalot_free(allocator, blocks[--count]));
  }
  NEEDED(cachalot_empty_cache(allocator, 0));
  NEEDED(cachalot_destroy(allocator));
  return failures != 0;
}
