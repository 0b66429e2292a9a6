/*
 * Devices that are opened later: until a device is first allocated from, nothing that is asked of it makes its context.
 * On the emulated driver.
 */
#include "../misuse/every_call.h"

#include <pthread.h>

enum { MEBIBYTE = 1 << 20, THREADS = 4 };

static uint64_t (*calls)(const char *);
static int (*plan)(const char *);

static uint64_t contexts(void) {
  return calls("cuDevicePrimaryCtxRetain");
}

/* Whether the settings name expandable segments already. */
static int is_asked = 0;

/* Everything but requests. */
static void ask(cachalot_allocator *allocator, int device) {
  const cachalot_pool pool = {7, 7};
  const size_t sizes[] = {MEBIBYTE, 3 * MEBIBYTE, (size_t)1 << 50};
  cachalot_forecast outlook = CACHALOT_FORECAST_INIT;
  cachalot_fit fit = CACHALOT_FIT_INIT;
  cachalot_statistics statistics = CACHALOT_STATISTICS_INIT;
  cachalot_block block = CACHALOT_BLOCK_INIT;
  char config[512];
  NEEDED(cachalot_get_statistics(allocator, device, &statistics));
  NEEDED(cachalot_visit_statistics(allocator, device, ignore_stat, NULL));
  NEEDED(cachalot_get_config(allocator, device, config, sizeof config, NULL));
  NEEDED(cachalot_check_health(allocator, device));
  NEEDED(cachalot_get_forecast(allocator, device, MEBIBYTE, NULL, &outlook));
  CHECK(contexts() > 0 || outlook.outcome == (is_asked ? CACHALOT_WOULD_EXPAND : CACHALOT_WOULD_OBTAIN));
  NEEDED(cachalot_get_fit(allocator, device, sizes, 3, NULL, &fit));
  CHECK(fit.served == 2);
  is_asked = 1;
  NEEDED(cachalot_configure(allocator, "expandable_segments:True,per_process_memory_fraction:0.5"));
  NEEDED(cachalot_get_forecast(allocator, device, MEBIBYTE, NULL, &outlook));
  CHECK(contexts() > 0 || outlook.outcome == CACHALOT_WOULD_EXPAND);
  NEEDED(cachalot_get_fit(allocator, device, sizes, 3, NULL, &fit));
  CHECK(fit.served == 2);
  NEEDED(cachalot_set_memory_fraction(allocator, device, 0.25));
  NEEDED(cachalot_process_events(allocator, device));
  NEEDED(cachalot_empty_cache(allocator, device));
  NEEDED(cachalot_trim(allocator, device, 0));
  NEEDED(cachalot_trace_start(allocator, device, 100));
  NEEDED(cachalot_snapshot(allocator, NULL, ignore_text, NULL));
  NEEDED(cachalot_write_metrics(allocator, ignore_text, NULL));
  NEEDED(cachalot_pool_retain(allocator, device, pool, 0));
  NEEDED(cachalot_pool_begin(allocator, device, pool, CACHALOT_ROUTE_THREAD, NULL));
  NEEDED(cachalot_pool_end(allocator, device, pool));
  NEEDED(cachalot_pool_release(allocator, device, pool));
  NEEDED(cachalot_pool_release(allocator, device, pool));
  NEEDED(cachalot_reset_peaks(allocator, device));
  NEEDED(cachalot_record_stream(allocator, NULL, NULL));
  CHECK(cachalot_record_stream(allocator, &statistics, NULL) == CACHALOT_ERROR_INVALID_POINTER);
  CHECK(cachalot_free(allocator, &statistics) == CACHALOT_ERROR_INVALID_POINTER);
  CHECK(cachalot_get_block(allocator, &statistics, &block) == CACHALOT_ERROR_INVALID_POINTER);
  NEEDED(cachalot_check_invariants(allocator));
}

static void *request(void *argument) {
  void *block = NULL;
  NEEDED(cachalot_malloc(argument, 1, 1000, NULL, &block));
  NEEDED(cachalot_free(argument, block));
  return NULL;
}

int main(int argc, char **argv) {
  const int devices[] = {0, 2};
  const cachalot_pool pool = {7, 7};
  const cachalot_stream own = (cachalot_stream)2;
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL, *other = NULL;
  cachalot_device_info described = CACHALOT_DEVICE_INFO_INIT;
  cachalot_forecast outlook = CACHALOT_FORECAST_INIT;
  pthread_t threads[THREADS];
  void *block = NULL, *outside = NULL;
  int count = 0, index;
  void *library;
  begin(argc, argv);
  options.flags = CACHALOT_OPEN_LATER;
  options.config = "per_process_memory_fraction:0.5";
  NEEDED(cachalot_create(&options, &allocator));
  library = dlopen(getenv("CACHALOT_LIBCUDA"), RTLD_LAZY | RTLD_NOLOAD);
  CHECK(library != NULL);
  *(void **)&calls = dlsym(library, "emu_calls");
  *(void **)&plan = dlsym(library, "emu_plan");
  NEEDED(cachalot_get_device_count(allocator, &count));
  CHECK(count == 2);
  ask(allocator, 0);
  ask(allocator, 1);
  CHECK(contexts() == 0);

  /* What is refused makes none either. */
  CHECK(cachalot_malloc(allocator, 2, 1000, NULL, &block) == CACHALOT_ERROR_UNKNOWN_DEVICE);
  options.device_count = 2;
  options.devices = devices;
  CHECK(cachalot_create(&options, &other) == CACHALOT_ERROR_UNKNOWN_DEVICE && other == NULL);
  options.flags |= CACHALOT_PEER_ACCESS;
  CHECK(cachalot_create(&options, &other) == CACHALOT_ERROR_INVALID_ARGUMENT && other == NULL);
  CHECK(contexts() == 0);

  /* Threads that come first at the same time open one device, once; the limit is what was set before. */
  NEEDED(plan("[{\"fn\": \"cuDevicePrimaryCtxRetain\", \"delay_us\": 100000}]"));
  for (index = 0; index < THREADS; ++index) {
    CHECK(pthread_create(&threads[index], NULL, request, allocator) == 0);
  }
  for (index = 0; index < THREADS; ++index) {
    CHECK(pthread_join(threads[index], NULL) == 0);
  }
  CHECK(contexts() == 1);
  NEEDED(cachalot_get_device_info(allocator, 1, &described));
  CHECK(described.limit_bytes == described.total_bytes / 4 && described.virtual_memory == 1);
  CHECK(described.free_bytes < described.total_bytes && contexts() == 1);
  ask(allocator, 1);

  /* A device that fails to open can be opened by the next request. */
  NEEDED(plan("[{\"fn\": \"cuDevicePrimaryCtxRetain\", \"code\": 2}]"));
  CHECK(cachalot_malloc(allocator, 0, MEBIBYTE, NULL, &block) == CACHALOT_ERROR_OUT_OF_MEMORY && block == NULL);
  CHECK(cachalot_last_driver_code() == 2);
  NEEDED(cachalot_get_forecast(allocator, 0, MEBIBYTE, NULL, &outlook));
  CHECK(outlook.outcome == CACHALOT_WOULD_EXPAND && contexts() == 2);
  NEEDED(cachalot_malloc(allocator, 0, MEBIBYTE, NULL, &block));
  NEEDED(cachalot_free(allocator, block));
  NEEDED(cachalot_destroy(allocator));

  /* One that was never opened needs no closing. */
  options = (cachalot_options)CACHALOT_OPTIONS_INIT;
  options.flags = CACHALOT_OPEN_LATER | CACHALOT_ASK_STREAM_ID;
  NEEDED(cachalot_create(&options, &allocator));
  NEEDED(cachalot_malloc(allocator, 1, MEBIBYTE, NULL, &block));
  NEEDED(cachalot_record_stream(allocator, block, (cachalot_stream)1));
  /* The open device knows that there is no such stream. */
  CHECK(cachalot_record_stream(allocator, block, (cachalot_stream)&count) == CACHALOT_ERROR_INVALID_STREAM);
  NEEDED(cachalot_free(allocator, block));
  CHECK(contexts() == 4);
  NEEDED(cachalot_destroy(allocator));

  /* A stream has the same number before a device is opened. */
  options.flags = CACHALOT_OPEN_LATER;
  NEEDED(cachalot_create(&options, &allocator));
  NEEDED(cachalot_pool_retain(allocator, 0, pool, 0));
  NEEDED(cachalot_pool_begin(allocator, 0, pool, CACHALOT_ROUTE_STREAM, own));
  NEEDED(cachalot_malloc(allocator, 0, MEBIBYTE, own, &block));
  NEEDED(cachalot_free(allocator, block));
  NEEDED(cachalot_pool_end(allocator, 0, pool));
  NEEDED(cachalot_malloc(allocator, 0, MEBIBYTE, own, &outside));
  CHECK(outside != block);
  NEEDED(cachalot_free(allocator, outside));
  NEEDED(cachalot_pool_release(allocator, 0, pool));
  NEEDED(cachalot_pool_release(allocator, 0, pool));
  NEEDED(cachalot_destroy(allocator));
  return failures != 0;
}
