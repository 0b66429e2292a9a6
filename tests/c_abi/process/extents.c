/*
 * The memory under blocks: every page is told of before a block lies there and before it goes, and a pinned page keeps
 * its place until it is unpinned. The configuration is the last argument.
 */
#include "../misuse/misuse.h"

enum { MEBIBYTE = 1 << 20, MOST = 4096, BLOCKS = 24 };

/* The pages that are mapped now. */
typedef struct mappings {
  cachalot_allocator *allocator;
  uintptr_t at[MOST];
  size_t bytes[MOST];
  int count;
  int mapped;
  int unmapped;
} mappings;

static int find(const mappings *all, uintptr_t at) {
  int index;
  for (index = 0; index < all->count; ++index) {
    if (at - all->at[index] < all->bytes[index]) {
      return index;
    }
  }
  return -1;
}

static void on_map(void *userdata, int device, void *address, size_t bytes) {
  mappings *all = userdata;
  cachalot_page_statistics pages = CACHALOT_PAGE_STATISTICS_INIT;
  CHECK(device == 0 && bytes > 0 && bytes % (2 * MEBIBYTE) == 0);
  CHECK(find(all, (uintptr_t)address) < 0 && find(all, (uintptr_t)address + bytes - 1) < 0);
  CHECK(all->count < MOST);
  all->at[all->count] = (uintptr_t)address;
  all->bytes[all->count++] = bytes;
  ++all->mapped;
  /* No lock is held, and the allocator stays. */
  CHECK(cachalot_get_page_statistics(all->allocator, 0, &pages) == CACHALOT_OK);
  CHECK(cachalot_destroy(all->allocator) == CACHALOT_ERROR_BUSY);
}

static void on_unmap(void *userdata, int device, void *address, size_t bytes) {
  mappings *all = userdata;
  const int index = find(all, (uintptr_t)address);
  CHECK(device == 0 && index >= 0);
  if (index >= 0) {
    CHECK(all->at[index] == (uintptr_t)address && all->bytes[index] == bytes);
    --all->count;
    all->at[index] = all->at[all->count];
    all->bytes[index] = all->bytes[all->count];
  }
  ++all->unmapped;
}

/* Checks that the extents cover the block, and that each is in a page that was told of, from its first byte on. */
static size_t check_extents(const mappings *all, void *block) {
  cachalot_block described = CACHALOT_BLOCK_INIT;
  cachalot_extent extents[64];
  size_t count = 0, again = 64, index;
  uint64_t end = 0;
  NEEDED(cachalot_get_block(all->allocator, block, &described));
  NEEDED(cachalot_get_extents(all->allocator, block, NULL, &count));
  NEEDED(cachalot_get_extents(all->allocator, block, extents, &again));
  CHECK(count == again && count > 0);
  for (index = 0; index < count; ++index) {
    const cachalot_extent it = extents[index];
    const uintptr_t at = (uintptr_t)block + it.offset;
    const int page = find(all, at);
    CHECK(it.flags == 0 && it.reserved == 0 && it.bytes > 0 && it.offset == end);
    CHECK(page >= 0 && at - all->at[page] == it.memory_offset);
    CHECK(page >= 0 && it.memory_offset + it.bytes <= it.memory_bytes && it.memory_bytes == all->bytes[page]);
    end += it.bytes;
  }
  CHECK(end == described.bytes);
  return count;
}

static uint64_t reserved(const mappings *all) {
  cachalot_statistics statistics = CACHALOT_STATISTICS_INIT;
  NEEDED(cachalot_get_statistics(all->allocator, 0, &statistics));
  return (uint64_t)statistics.reserved_bytes.current;
}

/* Frees and allocates longer blocks, so that pages come, move and go. */
static void churn(const mappings *all) {
  void *blocks[BLOCKS] = {NULL};
  int round, index;
  for (round = 0; round < 4; ++round) {
    for (index = 0; index < BLOCKS; ++index) {
      const size_t mebibytes = (size_t)(3 + (index * 7 + round * 11) % 23);
      if ((index + round) % 2 == 0 && blocks[index] != NULL) {
        NEEDED(cachalot_free(all->allocator, blocks[index]));
        blocks[index] = NULL;
      }
      if (blocks[index] == NULL) {
        NEEDED(cachalot_malloc(all->allocator, 0, mebibytes * MEBIBYTE, NULL, &blocks[index]));
      }
      check_extents(all, blocks[index]);
    }
  }
  for (index = 0; index < BLOCKS; ++index) {
    NEEDED(cachalot_free(all->allocator, blocks[index]));
  }
}

int main(int argc, char **argv) {
  static mappings all;
  cachalot_page_statistics pages = CACHALOT_PAGE_STATISTICS_INIT;
  void *pinned = NULL;
  begin(argc, argv);
  scene_options.config = argv[argc - 1];
  NEEDED(cachalot_create(&scene_options, &all.allocator));
  NEEDED(cachalot_on_map(all.allocator, on_map, &all));
  NEEDED(cachalot_on_unmap(all.allocator, on_unmap, &all));
  churn(&all);
  CHECK(all.mapped > 0 && all.mapped - all.unmapped == all.count);

  /* Pinned memory outlives its block, the whole cache, and whatever is allocated meanwhile. */
  NEEDED(cachalot_malloc(all.allocator, 0, 40 * MEBIBYTE, NULL, &pinned));
  NEEDED(cachalot_pin(all.allocator, pinned));
  NEEDED(cachalot_pin(all.allocator, pinned));
  NEEDED(cachalot_free(all.allocator, pinned));
  CHECK(cachalot_pin(all.allocator, pinned) == CACHALOT_ERROR_INVALID_POINTER);
  churn(&all);
  NEEDED(cachalot_unpin(all.allocator, pinned));
  NEEDED(cachalot_empty_cache(all.allocator, 0));
  NEEDED(cachalot_get_page_statistics(all.allocator, 0, &pages));
  CHECK(pages.pinned_bytes >= 40 * MEBIBYTE && pages.pinned_bytes == reserved(&all) && all.count > 0);
  CHECK(find(&all, (uintptr_t)pinned) >= 0 && find(&all, (uintptr_t)pinned + 40 * MEBIBYTE - 1) >= 0);
  NEEDED(cachalot_unpin(all.allocator, pinned));
  CHECK(cachalot_unpin(all.allocator, pinned) == CACHALOT_ERROR_NOT_PINNED);
  NEEDED(cachalot_empty_cache(all.allocator, 0));
  CHECK(reserved(&all) == 0 && all.count == 0);

  /* What is left to cachalot_destroy is told of, too. */
  NEEDED(cachalot_malloc(all.allocator, 0, 40 * MEBIBYTE, NULL, &pinned));
  NEEDED(cachalot_free(all.allocator, pinned));
  CHECK(all.count > 0);
  NEEDED(cachalot_check_invariants(all.allocator));
  NEEDED(cachalot_destroy(all.allocator));
  CHECK(all.count == 0 && all.mapped == all.unmapped);
  return failures != 0;
}
