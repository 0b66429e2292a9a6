/* Two Rust static libraries in one program. */
#include <cachalot.h>

#include <stdio.h>

uint32_t second_count(uint32_t limit);

int main(void) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  void *block = NULL;
  options.flags = CACHALOT_SIMULATED;
  if (cachalot_create(&options, &allocator) != CACHALOT_OK ||
      cachalot_malloc(allocator, 0, 100, NULL, &block) != CACHALOT_OK || second_count(25) != 11 ||
      cachalot_free(allocator, block) != CACHALOT_OK || cachalot_destroy(allocator) != CACHALOT_OK) {
    fprintf(stderr, "%s\n", cachalot_last_error());
    return 1;
  }
  return 0;
}
