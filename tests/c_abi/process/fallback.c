/*
 * The stitched policy on devices with virtual memory (with the argument `pages`) and without. Makes several requests on
 * every device. The test reads the warnings of the library on the standard error.
 */
#include "../misuse/misuse.h"

int main(int argc, char **argv) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator;
  int count, device, request;
  int expected = argc > 1 && strcmp(argv[1], "pages") == 0;
  options.config = "policy:stitched";
  NEEDED(cachalot_create(&options, &allocator));
  NEEDED(cachalot_get_device_count(allocator, &count));
  for (device = 0; device < count; ++device) {
    cachalot_device_info info = CACHALOT_DEVICE_INFO_INIT;
    cachalot_page_statistics pages = CACHALOT_PAGE_STATISTICS_INIT;
    NEEDED(cachalot_get_device_info(allocator, device, &info));
    CHECK(info.virtual_memory == expected);
    for (request = 0; request < 3; ++request) {
      void *block;
      NEEDED(cachalot_malloc(allocator, device, (size_t)(request + 1) * (30 << 20), NULL, &block));
      NEEDED(cachalot_free(allocator, block));
    }
    NEEDED(cachalot_get_page_statistics(allocator, device, &pages));
    CHECK((pages.mapped_bytes > 0) == expected && (pages.create.calls > 0) == expected);
    CHECK(pages.map.calls >= pages.set_access.calls && (pages.set_access.us > 0) == expected);
    CHECK((pages.longest_stall_us > 0) == expected);
  }
  NEEDED(cachalot_destroy(allocator));
  return failures != 0;
}
