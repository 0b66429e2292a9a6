/* Numbers and texts that mean nothing: flags, routes, fractions, names, settings, pools, ranges. */
#include "misuse.h"

#include <math.h>

static void options(const scene *it) {
  cachalot_allocator *made = NULL;
  const int ordinal = 0;
  void *const context = NULL;
  cachalot_options wrong = scene_options;
  wrong.flags |= 0x80000000u;
  REFUSED(it, CACHALOT_ERROR_INVALID_ARGUMENT, cachalot_create(&wrong, &made));
  wrong = scene_options;
  wrong.device_count = 128;
  REFUSED(it, CACHALOT_ERROR_INVALID_ARGUMENT, cachalot_create(&wrong, &made));
  wrong = scene_options;
  wrong.devices = &ordinal;
  REFUSED(it, CACHALOT_ERROR_INVALID_ARGUMENT, cachalot_create(&wrong, &made));
  wrong = scene_options;
  wrong.contexts = &context;
  REFUSED(it, CACHALOT_ERROR_INVALID_ARGUMENT, cachalot_create(&wrong, &made));
  wrong = scene_options;
  wrong.config = "max_split_size_mb:none";
  REFUSED(it, CACHALOT_ERROR_INVALID_CONFIG, cachalot_create(&wrong, &made));
  wrong.config = "\xff";
  REFUSED(it, CACHALOT_ERROR_INVALID_CONFIG, cachalot_create(&wrong, &made));
  CHECK(made == NULL);
}

static void settings(const scene *it) {
  const char *configs[] = {"nonsense",
                           "nonsense:1",
                           "max_split_size_mb",
                           "max_split_size_mb:1",
                           "garbage_collection_threshold:2",
                           "roundup_power2_divisions:3",
                           "expandable_segments:yes",
                           ",",
                           "backend:cudaMallocAsync"};
  const double fractions[] = {-0.1, 1.1, 1e300, -INFINITY, INFINITY, NAN};
  size_t index, length = 99;
  char tiny[1] = {'x'};
  for (index = 0; index < sizeof configs / sizeof *configs; ++index) {
    REFUSED(it, CACHALOT_ERROR_INVALID_CONFIG, cachalot_configure(it->allocator, configs[index]));
  }
  for (index = 0; index < sizeof fractions / sizeof *fractions; ++index) {
    REFUSED(it, CACHALOT_ERROR_INVALID_FRACTION, cachalot_set_memory_fraction(it->allocator, 0, fractions[index]));
  }
  REFUSED(it, CACHALOT_ERROR_BUFFER_TOO_SMALL, cachalot_get_config(it->allocator, 0, tiny, 0, &length));
  CHECK(length == 99 && tiny[0] == 'x');
}

static void pools(const scene *it) {
  const cachalot_pool unknown[] = {{0, 99}, {99, 0}, {UINT64_MAX, UINT64_MAX}, {0, 0}};
  cachalot_pool made = {7, 7};
  uint32_t users = 99;
  size_t index;
  for (index = 0; index < sizeof unknown / sizeof *unknown; ++index) {
    const cachalot_pool pool = unknown[index];
    REFUSED(it, CACHALOT_ERROR_UNKNOWN_POOL, cachalot_pool_release(it->allocator, 0, pool));
    REFUSED(it, CACHALOT_ERROR_UNKNOWN_POOL, cachalot_get_pool_users(it->allocator, 0, pool, &users));
    REFUSED(it, CACHALOT_ERROR_UNKNOWN_POOL, cachalot_pool_empty(it->allocator, 0, pool));
    REFUSED(it, CACHALOT_ERROR_UNKNOWN_POOL, cachalot_pool_begin(it->allocator, 0, pool, CACHALOT_ROUTE_ALL, NULL));
    REFUSED(it, CACHALOT_ERROR_UNKNOWN_POOL, cachalot_pool_end(it->allocator, 0, pool));
    REFUSED(it, CACHALOT_ERROR_UNKNOWN_POOL, cachalot_capture_begin(it->allocator, 0, pool, CACHALOT_ROUTE_ALL, NULL));
    REFUSED(it, CACHALOT_ERROR_UNKNOWN_POOL, cachalot_capture_end(it->allocator, 0, pool));
  }
  REFUSED(it, CACHALOT_ERROR_INVALID_ARGUMENT, cachalot_pool_retain(it->allocator, 0, unknown[3], 0));
  REFUSED(it, CACHALOT_ERROR_INVALID_ARGUMENT, cachalot_pool_retain(it->allocator, 0, unknown[0], 0x80000000u));
  REFUSED(it, CACHALOT_ERROR_INVALID_ARGUMENT, cachalot_pool_create(it->allocator, 0, 0x80000000u, &made));
  REFUSED(it, CACHALOT_ERROR_INVALID_ARGUMENT, cachalot_pool_begin(it->allocator, 0, it->pool, 0, NULL));
  REFUSED(it, CACHALOT_ERROR_INVALID_ARGUMENT, cachalot_capture_begin(it->allocator, 0, it->pool, 4, NULL));
  REFUSED(it, CACHALOT_ERROR_NOT_ROUTED, cachalot_pool_end(it->allocator, 0, it->pool));
  REFUSED(it, CACHALOT_ERROR_NOT_ROUTED, cachalot_capture_end(it->allocator, 0, it->pool));
  CHECK(users == 99 && made.first == 7 && made.second == 7);
}

static void ranges(const scene *it) {
  cachalot_range range, unknown;
  const size_t page = (size_t)2 << 20;
  size_t index;
  CHECK(cachalot_range_reserve(it->allocator, 0, 10 * page, &range) == CACHALOT_OK && range.page_bytes == page);
  const size_t wrong[][2] = {{1, page}, {page, 1}, {10 * page, page}, {0, 11 * page}, {page, SIZE_MAX - page + 1}};
  for (index = 0; index < sizeof wrong / sizeof *wrong; ++index) {
    const size_t offset = wrong[index][0], bytes = wrong[index][1];
    REFUSED(it, CACHALOT_ERROR_INVALID_ARGUMENT, cachalot_range_commit(range, offset, bytes, NULL));
    REFUSED(it, CACHALOT_ERROR_INVALID_ARGUMENT, cachalot_range_decommit(range, offset, bytes, NULL));
  }
  REFUSED(it, CACHALOT_ERROR_INVALID_STREAM, cachalot_range_commit(range, 0, page, (cachalot_stream)UINTPTR_MAX));
  unknown = range;
  unknown.device = 99;
  REFUSED(it, CACHALOT_ERROR_UNKNOWN_DEVICE, cachalot_range_commit(unknown, 0, page, NULL));
  unknown.allocator = NULL;
  REFUSED(it, CACHALOT_ERROR_NULL, cachalot_range_release(unknown));
  REFUSED(it, CACHALOT_ERROR_INVALID_ARGUMENT, cachalot_range_reserve(it->allocator, 0, 0, &unknown));
  REFUSED(it, CACHALOT_ERROR_TOO_LARGE, cachalot_range_reserve(it->allocator, 0, SIZE_MAX, &unknown));
  CHECK(cachalot_range_release(range) == CACHALOT_OK);
  REFUSED(it, CACHALOT_ERROR_UNKNOWN_RANGE, cachalot_range_commit(range, 0, page, NULL));
  REFUSED(it, CACHALOT_ERROR_UNKNOWN_RANGE, cachalot_range_decommit(range, 0, page, NULL));
  REFUSED(it, CACHALOT_ERROR_UNKNOWN_RANGE, cachalot_range_release(range));
}

int main(int argc, char **argv) {
  int64_t value = 99;
  int fd = 99;
  uint64_t moved = 99;
  cachalot_extent extents[1] = {{99, 99, 99, 99, 99, 99, 99}};
  size_t room = 0;
  void *block = NULL;
  scene it;
  begin(argc, argv);
  it = scene_open();
  options(&it);
  settings(&it);
  pools(&it);
  ranges(&it);
  REFUSED(&it, CACHALOT_ERROR_UNKNOWN_KEY, cachalot_find_statistic(it.allocator, 0, "", &value));
  REFUSED(&it, CACHALOT_ERROR_UNKNOWN_KEY, cachalot_find_statistic(it.allocator, 0, "reserved_bytes.all", &value));
  REFUSED(&it, CACHALOT_ERROR_UNKNOWN_KEY, cachalot_find_statistic(it.allocator, 0, "\xff", &value));
  CHECK(value == 99);
  REFUSED(&it, CACHALOT_ERROR_INVALID_STREAM,
          cachalot_malloc(it.allocator, 0, 100, (cachalot_stream)UINTPTR_MAX, &block));
  REFUSED(&it, CACHALOT_ERROR_INVALID_STREAM,
          cachalot_record_stream(it.allocator, it.small, (cachalot_stream)UINTPTR_MAX));
  REFUSED(&it, CACHALOT_ERROR_NOT_PINNED, cachalot_unpin(it.allocator, it.small));
  REFUSED(&it, CACHALOT_ERROR_INVALID_ARGUMENT, cachalot_advise(it.allocator, it.small, 3, &moved));
  REFUSED(&it, CACHALOT_ERROR_UNSUPPORTED, cachalot_advise(it.allocator, it.small, CACHALOT_COLD, &moved));
  CHECK(moved == 99);
  REFUSED(&it, CACHALOT_ERROR_NOT_PINNED, cachalot_export_fd(it.allocator, it.small, &fd));
  CHECK(fd == 99);
  REFUSED(&it, CACHALOT_ERROR_BUFFER_TOO_SMALL, cachalot_get_extents(it.allocator, it.small, extents, &room));
  CHECK(room == 0 && extents[0].bytes == 99);
  cachalot_snapshot_options file = CACHALOT_SNAPSHOT_OPTIONS_INIT;
  file.path = "/nowhere/at/all";
  REFUSED(&it, CACHALOT_ERROR_IO, cachalot_snapshot(it.allocator, &file, NULL, NULL));
  REFUSED(&it, CACHALOT_ERROR_INVALID_ARGUMENT, cachalot_snapshot(it.allocator, &file, append, NULL));
  file.path = NULL;
  file.format = 3;
  REFUSED(&it, CACHALOT_ERROR_INVALID_ARGUMENT, cachalot_snapshot(it.allocator, &file, append, NULL));
  file.format = CACHALOT_JSON;
  file.struct_size = 16;
  REFUSED(&it, CACHALOT_ERROR_STRUCT_SIZE, cachalot_snapshot(it.allocator, &file, append, NULL));
  scene_close(&it);
  return failures != 0;
}
