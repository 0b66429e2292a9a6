/* Addresses inside a block, and just beside it. */
#include "misuse.h"

static void not_a_block(const scene *it, char *address) {
  REFUSED(it, CACHALOT_ERROR_INVALID_POINTER, cachalot_free(it->allocator, address));
  REFUSED(it, CACHALOT_ERROR_INVALID_POINTER, cachalot_free_sized(it->allocator, address, 1000));
  REFUSED(it, CACHALOT_ERROR_INVALID_POINTER, cachalot_record_stream(it->allocator, address, NULL));
}

static void every_place(const scene *it, char *base) {
  cachalot_block block = CACHALOT_BLOCK_INIT;
  size_t offsets[6];
  int index;
  NEEDED(cachalot_get_block(it->allocator, base, &block));
  offsets[0] = 1;
  offsets[1] = 511;
  offsets[2] = 512;
  offsets[3] = block.bytes / 2 + 1;
  offsets[4] = block.bytes - 512 + 1;
  offsets[5] = block.bytes - 1;
  for (index = 0; index < 6; ++index) {
    cachalot_block found = CACHALOT_BLOCK_INIT;
    char text[96];
    not_a_block(it, base + offsets[index]);
    snprintf(text, sizeof text, "lies %zu bytes into the live block of %zu bytes", offsets[index], block.requested_bytes);
    CHECK(strstr(cachalot_last_error(), text) != NULL);
    /* A question may be about any part of it. */
    NEEDED(cachalot_get_block(it->allocator, base + offsets[index], &found));
    CHECK(found.base == base && found.bytes == block.bytes && found.requested_bytes == block.requested_bytes);
  }
  not_a_block(it, base + block.bytes);
  not_a_block(it, base - 1);
}

int main(int argc, char **argv) {
  scene it;
  begin(argc, argv);
  it = scene_open();
  every_place(&it, it.small);
  every_place(&it, it.large);
  scene_close(&it);
  return failures != 0;
}
