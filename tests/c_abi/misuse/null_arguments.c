/* NULL for every pointer of every function. */
#include "every_call.h"

#define ONE_CALL(name, arguments) REFUSED(&it, CACHALOT_ERROR_NULL, name arguments);

static void no_allocator(const scene it) {
  const cachalot_allocator *allocator = NULL;
  const int device = 0;
  const cachalot_pool pool = it.pool;
  void *block = it.small;
  EVERY_CALL(ONE_CALL, ONE_CALL)
}

int main(int argc, char **argv) {
  scene it;
  size_t length = 7;
  cachalot_status ok = CACHALOT_OK;
  begin(argc, argv);
  it = scene_open();
  no_allocator(it);
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_create(&scene_options, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_configure(it.allocator, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_get_config(it.allocator, 0, NULL, 0, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_get_config(it.allocator, 0, NULL, 100, &length));
  CHECK(length == 7);
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_get_device_count(it.allocator, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_get_device_info(it.allocator, 0, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_malloc(it.allocator, 0, 100, NULL, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_malloc(it.allocator, 0, 0, NULL, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_get_block(it.allocator, it.small, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_explain_address(it.allocator, it.small, NULL, 0, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_explain_address(it.allocator, it.small, NULL, 9, &length));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_get_forecast(it.allocator, 0, 100, NULL, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_get_fit(it.allocator, 0, &length, 1, NULL, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_get_fit(it.allocator, 0, NULL, 1, NULL, &any_fit));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_get_extents(it.allocator, it.small, NULL, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_pool_create(it.allocator, 0, 0, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_range_reserve(it.allocator, 0, 100, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_get_pool_users(it.allocator, 0, it.pool, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_get_statistics(it.allocator, 0, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_find_statistic(it.allocator, 0, NULL, &any_number));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_find_statistic(it.allocator, 0, "num_ooms", NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_export_fd(it.allocator, it.small, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_visit_statistics(it.allocator, 0, NULL, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_visit_trace(it.allocator, 0, NULL, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_snapshot(it.allocator, NULL, NULL, NULL));
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_write_metrics(it.allocator, NULL, NULL));
  cachalot_snapshot_options pickle = CACHALOT_SNAPSHOT_OPTIONS_INIT;
  pickle.format = CACHALOT_PICKLE;
  REFUSED(&it, CACHALOT_ERROR_NULL, cachalot_snapshot(it.allocator, &pickle, NULL, NULL));
  /* Where NULL means something, it is fine. */
  REFUSED(&it, ok, cachalot_free(it.allocator, NULL));
  REFUSED(&it, ok, cachalot_free_sized(it.allocator, NULL, 100));
  REFUSED(&it, ok, cachalot_record_stream(it.allocator, NULL, NULL));
  REFUSED(&it, ok, cachalot_pin(it.allocator, NULL));
  REFUSED(&it, ok, cachalot_unpin(it.allocator, NULL));
  REFUSED(&it, ok, cachalot_advise(it.allocator, NULL, CACHALOT_COLD, NULL));
  REFUSED(&it, ok, cachalot_get_extents(it.allocator, NULL, NULL, &length));
  CHECK(length == 0);
  REFUSED(&it, ok, cachalot_destroy(NULL));
  REFUSED(&it, CACHALOT_ERROR_INVALID_POINTER, cachalot_get_block(it.allocator, NULL, &any_block));
  scene_close(&it);
  return failures != 0;
}
