/* Structures of sizes that are not the library's: those of older and newer programs, and those that are none. */
#include "misuse.h"

/* As a later version may have it. */
typedef struct later_options {
  cachalot_options now;
  uint64_t later[4];
} later_options;

typedef struct later_block {
  cachalot_block now;
  uint64_t later[4];
} later_block;

/* The reader of `struct_size` alone, so that a checker sees whether more is touched. */
static void output_sizes(const scene *it) {
  const size_t sizes[] = {0, 1, 7, 8, 16, 4097, SIZE_MAX / 2, SIZE_MAX};
  size_t index;
  for (index = 0; index < sizeof sizes / sizeof *sizes; ++index) {
    size_t *alone = malloc(sizeof *alone);
    *alone = sizes[index];
    REFUSED(it, CACHALOT_ERROR_STRUCT_SIZE, cachalot_get_block(it->allocator, it->small, (cachalot_block *)alone));
    REFUSED(it, CACHALOT_ERROR_STRUCT_SIZE,
            cachalot_get_forecast(it->allocator, 0, 1, NULL, (cachalot_forecast *)alone));
    REFUSED(it, CACHALOT_ERROR_STRUCT_SIZE, cachalot_get_fit(it->allocator, 0, NULL, 0, NULL, (cachalot_fit *)alone));
    REFUSED(it, CACHALOT_ERROR_STRUCT_SIZE, cachalot_get_device_info(it->allocator, 0, (cachalot_device_info *)alone));
    REFUSED(it, CACHALOT_ERROR_STRUCT_SIZE, cachalot_get_statistics(it->allocator, 0, (cachalot_statistics *)alone));
    CHECK(*alone == sizes[index]);
    free(alone);
  }
}

int main(int argc, char **argv) {
  later_options options;
  later_block block;
  cachalot_allocator *made = NULL;
  cachalot_status ok = CACHALOT_OK;
  scene it;
  size_t size;
  begin(argc, argv);
  it = scene_open();
  output_sizes(&it);
  memset(&options, 0, sizeof options);
  options.now = scene_options;
  for (size = 0; size < sizeof(cachalot_options); size += 8) {
    options.now.struct_size = size;
    REFUSED(&it, CACHALOT_ERROR_STRUCT_SIZE, cachalot_create(&options.now, &made));
  }
  options.now.struct_size = 0x5a5a5a5a5a5a5a5a;
  REFUSED(&it, CACHALOT_ERROR_STRUCT_SIZE, cachalot_create(&options.now, &made));
  options.now.struct_size = sizeof options;
  options.later[3] = (uint64_t)1 << 63;
  REFUSED(&it, CACHALOT_ERROR_STRUCT_SIZE, cachalot_create(&options.now, &made));
  CHECK(made == NULL);
  /* What a newer program does not use does no harm. */
  options.later[3] = 0;
  NEEDED(cachalot_create(&options.now, &made));
  NEEDED(cachalot_destroy(made));
  memset(&block, 0x5a, sizeof block);
  block.now.struct_size = sizeof block;
  REFUSED(&it, ok, cachalot_get_block(it.allocator, it.small, &block.now));
  CHECK(block.now.base == it.small && block.now.requested_bytes == 1000 && block.now.struct_size == sizeof block);
  for (size = 0; size < sizeof block.later; ++size) {
    CHECK(((unsigned char *)block.later)[size] == 0x5a);
  }
  scene_close(&it);
  return failures != 0;
}
