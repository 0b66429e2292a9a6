/* Addresses that are not this allocator's: of the host, of another allocator, of nobody. */
#include "misuse.h"

static void every_use(const scene *it, void *block) {
  cachalot_block out = CACHALOT_BLOCK_INIT;
  size_t length = 0;
  REFUSED(it, CACHALOT_ERROR_INVALID_POINTER, cachalot_free(it->allocator, block));
  REFUSED(it, CACHALOT_ERROR_INVALID_POINTER, cachalot_free_sized(it->allocator, block, 1000));
  REFUSED(it, CACHALOT_ERROR_INVALID_POINTER, cachalot_record_stream(it->allocator, block, NULL));
  REFUSED(it, CACHALOT_ERROR_INVALID_POINTER, cachalot_get_block(it->allocator, block, &out));
  REFUSED(it, CACHALOT_ERROR_INVALID_POINTER, cachalot_explain_address(it->allocator, block, NULL, 0, &length));
  CHECK(out.base == NULL);
  CHECK(strstr(cachalot_last_error(), "lies in no segment of this allocator") != NULL);
}

int main(int argc, char **argv) {
  scene it, other;
  int on_the_stack = 0;
  void *on_the_heap = malloc(1000);
  unsigned bit;
  begin(argc, argv);
  it = scene_open();
  other = scene_open();
  every_use(&it, &on_the_stack);
  every_use(&it, on_the_heap);
  every_use(&it, (void *)(uintptr_t)&main);
  every_use(&it, other.small);
  every_use(&it, other.large);
  every_use(&other, it.small);
  every_use(&it, it.allocator);
  every_use(&it, (void *)UINTPTR_MAX);
  for (bit = 0; bit < 64; bit += 3) {
    void *power = (void *)((uintptr_t)1 << bit);
    if (power != it.small) {
      every_use(&it, power);
    }
    every_use(&it, (void *)((uintptr_t)it.small ^ (uintptr_t)1 << 63 >> (bit % 16)));
  }
  free(on_the_heap);
  scene_close(&other);
  scene_close(&it);
  return failures != 0;
}
