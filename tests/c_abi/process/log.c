/* An allocator that lacks memory once, for the log. */
#include <cachalot.h>

#include <stdio.h>

int main(void) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  void *block = NULL;
  options.flags = CACHALOT_SIMULATED;
  options.config = "policy:bfc,first_region_mb:1";
  options.limit_bytes = 1u << 26;
  if (cachalot_create(&options, &allocator) != CACHALOT_OK ||
      cachalot_malloc(allocator, 0, 1u << 30, NULL, &block) != CACHALOT_ERROR_OUT_OF_MEMORY ||
      cachalot_destroy(allocator) != CACHALOT_OK) {
    printf("%s\n", cachalot_last_error());
    return 1;
  }
  return 0;
}
