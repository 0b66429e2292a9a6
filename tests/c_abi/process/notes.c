/* Settings without effect: no failure, and a line on the standard error, once in a process. */
#include <cachalot.h>

#include <stdio.h>

static int makes(const char *config, uint64_t limit_bytes) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  options.flags = CACHALOT_SIMULATED;
  options.config = config;
  options.limit_bytes = limit_bytes;
  return cachalot_create(&options, &allocator) == CACHALOT_OK && cachalot_destroy(allocator) == CACHALOT_OK;
}

int main(void) {
  const int made = makes("compact:0.05", 0) && makes("garbage_collection_threshold:0.8", 1u << 30) &&
                   makes("compact:0.05,expandable_segments:True", 0) &&
                   makes("compact:0.1,expandable_segments:True", 0) && makes("garbage_collection_threshold:0.8", 0);
  if (!made) {
    printf("%s\n", cachalot_last_error());
  }
  return made ? 0 : 1;
}
