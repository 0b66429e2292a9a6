/*
 * Every function that takes an allocator, called with arguments that are fine, so that one of them can be spoiled. The
 * names `allocator`, `device`, `block` and `pool` stand for variables of whoever uses the list.
 *
 * ALLOCATOR_CALL(name, arguments) has no device, DEVICE_CALL(name, arguments) has one.
 */
#ifndef EVERY_CALL_H
#define EVERY_CALL_H

#include "misuse.h"

/* Where results go. What they are is of no interest here, and not every program needs all. */
#define UNUSED __attribute__((unused))
static void *any_pointer UNUSED;
static int any_int UNUSED;
static int64_t any_number UNUSED;
static uint32_t any_users UNUSED;
static size_t any_length UNUSED;
static char any_text[512] UNUSED;
static cachalot_pool any_pool UNUSED;
static cachalot_range any_range UNUSED;
static cachalot_snapshot_options any_file UNUSED = {sizeof(cachalot_snapshot_options), "/dev/null/none", 0, 0};
static cachalot_block any_block UNUSED = CACHALOT_BLOCK_INIT;
static cachalot_forecast any_outlook UNUSED = CACHALOT_FORECAST_INIT;
static cachalot_fit any_fit UNUSED = CACHALOT_FIT_INIT;
static cachalot_device_info any_device UNUSED = CACHALOT_DEVICE_INFO_INIT;
static cachalot_page_statistics any_pages UNUSED = CACHALOT_PAGE_STATISTICS_INIT;
static cachalot_reclaim_statistics any_reclaimed UNUSED = CACHALOT_RECLAIM_STATISTICS_INIT;
static cachalot_park_target any_target UNUSED = {sizeof(cachalot_park_target), 1, NULL, CACHALOT_PARK_TAG, 0};
static cachalot_park_report any_park UNUSED = CACHALOT_PARK_REPORT_INIT;
static cachalot_remaining_memory any_remaining UNUSED = CACHALOT_REMAINING_MEMORY_INIT;
static cachalot_tag_limits any_limits UNUSED = CACHALOT_TAG_LIMITS_INIT;
static cachalot_tag_report any_tag UNUSED = CACHALOT_TAG_REPORT_INIT;
static cachalot_statistics any_statistics UNUSED = CACHALOT_STATISTICS_INIT;
static cachalot_plan_report any_plan UNUSED = CACHALOT_PLAN_REPORT_INIT;
static cachalot_tune_report any_tune UNUSED = CACHALOT_TUNE_REPORT_INIT;

static inline int ignore_stat(void *userdata, const char *key, int64_t value) {
  (void)userdata, (void)key, (void)value;
  return 0;
}

static inline int ignore_entry(void *userdata, const cachalot_trace_entry *entry) {
  (void)userdata, (void)entry;
  return 0;
}

static inline int ignore_text(void *userdata, const char *part, size_t bytes) {
  (void)userdata, (void)part, (void)bytes;
  return 0;
}

#define EVERY_CALL(ALLOCATOR_CALL, DEVICE_CALL)                                                           \
  ALLOCATOR_CALL(cachalot_configure, (allocator, ""))                                                     \
  DEVICE_CALL(cachalot_get_config, (allocator, device, any_text, sizeof any_text, &any_length))           \
  ALLOCATOR_CALL(cachalot_get_device_count, (allocator, &any_int))                                        \
  DEVICE_CALL(cachalot_get_device_info, (allocator, device, &any_device))                                 \
  DEVICE_CALL(cachalot_check_health, (allocator, device))                                                 \
  DEVICE_CALL(cachalot_enable_peer_access, (allocator, device, 0))                                        \
  DEVICE_CALL(cachalot_enable_peer_access, (allocator, 0, device))                                        \
  DEVICE_CALL(cachalot_malloc, (allocator, device, 100, NULL, &any_pointer))                              \
  ALLOCATOR_CALL(cachalot_free, (allocator, block))                                                       \
  ALLOCATOR_CALL(cachalot_free_sized, (allocator, block, 1000))                                           \
  ALLOCATOR_CALL(cachalot_free_at, (allocator, block, 0))                                                 \
  ALLOCATOR_CALL(cachalot_set_safe_frontier, (allocator, 0, 0))                                           \
  ALLOCATOR_CALL(cachalot_record_stream, (allocator, block, NULL))                                        \
  ALLOCATOR_CALL(cachalot_record_use, (allocator, block, NULL))                                           \
  DEVICE_CALL(cachalot_stream_destroyed, (allocator, device, (cachalot_stream)(uintptr_t)0x7f0000001000)) \
  DEVICE_CALL(cachalot_stream_unreported, (allocator, device, NULL))                                      \
  DEVICE_CALL(cachalot_stream_trim, (allocator, device, NULL, 0))                                         \
  ALLOCATOR_CALL(cachalot_get_block, (allocator, block, &any_block))                                      \
  ALLOCATOR_CALL(cachalot_explain_address, (allocator, block, any_text, sizeof any_text, &any_length))    \
  DEVICE_CALL(cachalot_get_forecast, (allocator, device, 100, NULL, &any_outlook))                        \
  DEVICE_CALL(cachalot_get_fit, (allocator, device, &any_length, 1, NULL, &any_fit))                      \
  DEVICE_CALL(cachalot_process_events, (allocator, device))                                               \
  DEVICE_CALL(cachalot_empty_cache, (allocator, device))                                                  \
  DEVICE_CALL(cachalot_trim, (allocator, device, 0))                                                      \
  DEVICE_CALL(cachalot_hold_begin, (allocator, device))                                                   \
  DEVICE_CALL(cachalot_hold_end, (allocator, device))                                                     \
  DEVICE_CALL(cachalot_maintain, (allocator, device, 0, NULL))                                            \
  ALLOCATOR_CALL(cachalot_maintain_every, (allocator, 0, 0))                                              \
  DEVICE_CALL(cachalot_get_reclaim_statistics, (allocator, device, &any_reclaimed))                       \
  DEVICE_CALL(cachalot_get_page_statistics, (allocator, device, &any_pages))                              \
  ALLOCATOR_CALL(cachalot_get_extents, (allocator, block, NULL, &any_length))                             \
  ALLOCATOR_CALL(cachalot_pin, (allocator, block))                                                        \
  ALLOCATOR_CALL(cachalot_unpin, (allocator, block))                                                      \
  ALLOCATOR_CALL(cachalot_advise, (allocator, block, CACHALOT_HOT, NULL))                                 \
  ALLOCATOR_CALL(cachalot_export_fd, (allocator, block, &any_int))                                        \
  DEVICE_CALL(cachalot_set_caching, (allocator, device, 1))                                               \
  DEVICE_CALL(cachalot_set_limit, (allocator, device, CACHALOT_NO_LIMIT))                                 \
  DEVICE_CALL(cachalot_set_memory_fraction, (allocator, device, 0.5))                                     \
  DEVICE_CALL(cachalot_begin_iteration, (allocator, device))                                              \
  DEVICE_CALL(cachalot_end_plans, (allocator, device))                                                    \
  DEVICE_CALL(cachalot_get_plan_report, (allocator, device, &any_plan))                                   \
  DEVICE_CALL(cachalot_get_tune_report, (allocator, device, &any_tune))                                   \
  DEVICE_CALL(cachalot_pool_create, (allocator, device, 0, &any_pool))                                    \
  DEVICE_CALL(cachalot_pool_retain, (allocator, device, pool, 0))                                         \
  DEVICE_CALL(cachalot_pool_release, (allocator, device, pool))                                           \
  DEVICE_CALL(cachalot_get_pool_users, (allocator, device, pool, &any_users))                             \
  DEVICE_CALL(cachalot_pool_empty, (allocator, device, pool))                                             \
  DEVICE_CALL(cachalot_pool_trim, (allocator, device, pool, 0))                                           \
  DEVICE_CALL(cachalot_pool_spill, (allocator, device, pool, 0))                                          \
  DEVICE_CALL(cachalot_pool_begin, (allocator, device, pool, CACHALOT_ROUTE_ALL, NULL))                   \
  DEVICE_CALL(cachalot_pool_end, (allocator, device, pool))                                               \
  DEVICE_CALL(cachalot_capture_begin, (allocator, device, pool, CACHALOT_ROUTE_ALL, NULL))                \
  DEVICE_CALL(cachalot_capture_end, (allocator, device, pool))                                            \
  DEVICE_CALL(cachalot_pool_set_tag, (allocator, device, pool, 0))                                        \
  DEVICE_CALL(cachalot_park, (allocator, device, &any_target, NULL))                                      \
  DEVICE_CALL(cachalot_wake, (allocator, device, &any_target))                                            \
  DEVICE_CALL(cachalot_wake_start, (allocator, device, &any_target))                                      \
  DEVICE_CALL(cachalot_wake_wait, (allocator, device, &any_target))                                       \
  DEVICE_CALL(cachalot_get_park_report, (allocator, device, &any_target, &any_park))                      \
  DEVICE_CALL(cachalot_pool_lend, (allocator, device, pool))                                              \
  DEVICE_CALL(cachalot_pool_reclaim, (allocator, device, pool, NULL))                                     \
  DEVICE_CALL(cachalot_tag_lend, (allocator, device, 1))                                                  \
  DEVICE_CALL(cachalot_tag_reclaim, (allocator, device, 1, NULL))                                         \
  DEVICE_CALL(cachalot_tag_set_fallback, (allocator, device, 1, 0))                                       \
  DEVICE_CALL(cachalot_get_remaining_memory, (allocator, device, &any_remaining))                         \
  DEVICE_CALL(cachalot_retain_host_memory, (allocator, device, 0))                                        \
  DEVICE_CALL(cachalot_tag_set_limits, (allocator, device, 1, &any_limits))                               \
  DEVICE_CALL(cachalot_tag_trim, (allocator, device, 1, 0))                                               \
  DEVICE_CALL(cachalot_get_tag_report, (allocator, device, 1, &any_tag))                                  \
  DEVICE_CALL(cachalot_range_reserve, (allocator, device, 100, &any_range))                               \
  DEVICE_CALL(cachalot_get_statistics, (allocator, device, &any_statistics))                              \
  DEVICE_CALL(cachalot_find_statistic, (allocator, device, "num_ooms", &any_number))                      \
  DEVICE_CALL(cachalot_visit_statistics, (allocator, device, ignore_stat, NULL))                          \
  DEVICE_CALL(cachalot_reset_peaks, (allocator, device))                                                  \
  DEVICE_CALL(cachalot_reset_accumulated, (allocator, device))                                            \
  ALLOCATOR_CALL(cachalot_on_shortage, (allocator, NULL, NULL))                                           \
  ALLOCATOR_CALL(cachalot_on_out_of_memory, (allocator, NULL, NULL))                                      \
  ALLOCATOR_CALL(cachalot_on_map, (allocator, NULL, NULL))                                                \
  ALLOCATOR_CALL(cachalot_on_unmap, (allocator, NULL, NULL))                                              \
  ALLOCATOR_CALL(cachalot_on_stack, (allocator, NULL, NULL))                                              \
  DEVICE_CALL(cachalot_trace_start, (allocator, device, 0))                                               \
  ALLOCATOR_CALL(cachalot_recorder_start, (allocator, "0"))                                               \
  DEVICE_CALL(cachalot_visit_trace, (allocator, device, ignore_entry, NULL))                              \
  ALLOCATOR_CALL(cachalot_snapshot, (allocator, NULL, ignore_text, NULL))                                 \
  ALLOCATOR_CALL(cachalot_write_metrics, (allocator, ignore_text, NULL))                                  \
  ALLOCATOR_CALL(cachalot_snapshot, (allocator, &any_file, NULL, NULL))                                   \
  ALLOCATOR_CALL(cachalot_check_invariants, (allocator))                                                  \
  DEVICE_CALL(cachalot_simulate_progress, (allocator, device, NULL))                                      \
  DEVICE_CALL(cachalot_simulate_capture, (allocator, device, NULL, 0))

#endif
