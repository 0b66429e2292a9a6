/*
 * A device without memory besides that of the host: the free memory in a report is what the system can give, no
 * memory is parked with its contents, and blocks are served whether or not the driver maps pages. The configuration is the
 * argument.
 */
#include "../misuse/misuse.h"

static void try_to_park(cachalot_allocator *allocator, cachalot_park_mode mode) {
  const cachalot_park_target target = {sizeof target, 7, NULL, CACHALOT_PARK_TAG, 0};
  const cachalot_park_options options = {sizeof options, mode, CACHALOT_PARK_AFTER_DEVICE};
  if (cachalot_park(allocator, 0, &target, &options) == CACHALOT_OK) {
    NEEDED(cachalot_wake(allocator, 0, &target));
    puts("parked");
  } else {
    puts(cachalot_last_error());
  }
}

int main(int argc, char **argv) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  const size_t bytes = (size_t)40 << 20;
  cachalot_allocator *allocator = NULL;
  cachalot_pool pool = {0, 0};
  void *block = NULL, *none = NULL;
  options.config = argv[argc - 1];
  NEEDED(cachalot_create(&options, &allocator));
  CHECK(cachalot_malloc(allocator, 0, (size_t)1100 << 20, NULL, &none) == CACHALOT_ERROR_OUT_OF_MEMORY);
  puts(cachalot_last_error());
  NEEDED(cachalot_pool_create(allocator, 0, 0, &pool));
  NEEDED(cachalot_pool_set_tag(allocator, 0, pool, 7));
  NEEDED(cachalot_pool_begin(allocator, 0, pool, CACHALOT_ROUTE_ALL, NULL));
  NEEDED(cachalot_malloc(allocator, 0, bytes, NULL, &block));
  NEEDED(cachalot_pool_end(allocator, 0, pool));
  NEEDED(cachalot_pool_release(allocator, 0, pool));
  try_to_park(allocator, CACHALOT_PARK_KEEP);
  try_to_park(allocator, CACHALOT_PARK_DROP);
  NEEDED(cachalot_free(allocator, block));
  NEEDED(cachalot_pool_release(allocator, 0, pool));
  NEEDED(cachalot_destroy(allocator));
  return failures != 0;
}
