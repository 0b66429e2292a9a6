/* Sized frees with another size than was requested, near ones and far ones. */
#include "misuse.h"

int main(int argc, char **argv) {
  const size_t wrong[] = {0, 1, 511, 512, 999, 1001, 1023, 1024, 1025, 3 << 20, SIZE_MAX / 2, SIZE_MAX};
  scene it;
  size_t index;
  begin(argc, argv);
  it = scene_open();
  for (index = 0; index < sizeof wrong / sizeof *wrong; ++index) {
    REFUSED(&it, CACHALOT_ERROR_WRONG_SIZE, cachalot_free_sized(it.allocator, it.small, wrong[index]));
  }
  REFUSED(&it, CACHALOT_ERROR_WRONG_SIZE, cachalot_free_sized(it.allocator, it.large, 1000));
  REFUSED(&it, CACHALOT_ERROR_WRONG_SIZE, cachalot_free_sized(it.allocator, it.large, (3 << 20) - 1));
  scene_close(&it);
  return failures != 0;
}
