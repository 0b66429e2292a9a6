/* A block that was freed before: at once, after others, after its segment went back, and while another stream still
 * uses it. */
#include "misuse.h"

#include <stdint.h>

static void freed_before(const scene *it, void *block, size_t bytes) {
  REFUSED(it, CACHALOT_ERROR_INVALID_POINTER, cachalot_free(it->allocator, block));
  REFUSED(it, CACHALOT_ERROR_INVALID_POINTER, cachalot_free_sized(it->allocator, block, bytes));
  REFUSED(it, CACHALOT_ERROR_INVALID_POINTER, cachalot_record_stream(it->allocator, block, NULL));
  CHECK(strstr(cachalot_last_error(), "freed") != NULL);
}

int main(int argc, char **argv) {
  scene it;
  void *blocks[8];
  int index;
  begin(argc, argv);
  it = scene_open();
  for (index = 0; index < 8; ++index) {
    NEEDED(cachalot_malloc(it.allocator, 0, (size_t)1000 << index, NULL, &blocks[index]));
  }
  for (index = 0; index < 8; ++index) {
    NEEDED(cachalot_free(it.allocator, blocks[index]));
    freed_before(&it, blocks[index], (size_t)1000 << index);
  }
  for (index = 0; index < 8; ++index) {
    freed_before(&it, blocks[index], (size_t)1000 << index);
  }
  NEEDED(cachalot_malloc(it.allocator, 0, 40 << 20, NULL, &blocks[0]));
  NEEDED(cachalot_free(it.allocator, blocks[0]));
  NEEDED(cachalot_empty_cache(it.allocator, 0));
  freed_before(&it, blocks[0], 40 << 20);
  CHECK(strstr(cachalot_last_error(), "was freed and its memory returned to the device") != NULL);
  /* Freed, and kept for another stream: the thread's own default stream, which every driver has. */
  NEEDED(cachalot_malloc(it.allocator, 0, 1000, NULL, &blocks[0]));
  NEEDED(cachalot_record_stream(it.allocator, blocks[0], (cachalot_stream)(uintptr_t)2));
  NEEDED(cachalot_free(it.allocator, blocks[0]));
  freed_before(&it, blocks[0], 1000);
  CHECK(strstr(cachalot_last_error(), "freed before and still waits") != NULL);
  scene_close(&it);
  return failures != 0;
}
