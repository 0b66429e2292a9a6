/*
 * Callbacks that call back: the allocator may be used from each, but for cachalot_destroy, and requests made there lead
 * to no further callbacks.
 */
#include "../misuse/misuse.h"

enum { MEBIBYTE = 1 << 20 };

/* What the callbacks share. */
typedef struct meeting {
  cachalot_allocator *allocator;
  void *spare;
  int asked;
  int told;
  int visited;
} meeting;

static int shortage(void *userdata, int device, size_t bytes) {
  meeting *it = userdata;
  void *block = NULL;
  CHECK(device == 0 && bytes >= 40 * MEBIBYTE);
  ++it->asked;
  CHECK(cachalot_destroy(it->allocator) == CACHALOT_ERROR_BUSY);
  /* A small request is served; one that would run short itself fails, and calls nobody. */
  CHECK(cachalot_malloc(it->allocator, 0, 1000, NULL, &block) == CACHALOT_OK);
  CHECK(cachalot_free(it->allocator, block) == CACHALOT_OK);
  CHECK(cachalot_malloc(it->allocator, 0, 90 * MEBIBYTE, NULL, &block) == CACHALOT_ERROR_OUT_OF_MEMORY);
  CHECK(cachalot_check_invariants(it->allocator) == CACHALOT_OK);
  if (it->spare == NULL) {
    return 0;
  }
  CHECK(cachalot_free(it->allocator, it->spare) == CACHALOT_OK);
  it->spare = NULL;
  return 1;
}

static void out_of_memory(void *userdata, const cachalot_oom_report *report) {
  meeting *it = userdata;
  cachalot_statistics statistics = CACHALOT_STATISTICS_INIT;
  ++it->told;
  CHECK(report->struct_size == sizeof *report && report->device == 0 && report->capturing == 0);
  CHECK(report->limit_bytes == 64 * MEBIBYTE && report->requested_bytes == 50 * MEBIBYTE);
  CHECK(report->block_bytes >= report->requested_bytes && report->segment_bytes >= report->block_bytes);
  CHECK(strstr(report->text, "Tried to allocate 50 MiB on device 0") != NULL);
  CHECK(cachalot_get_statistics(it->allocator, 0, &statistics) == CACHALOT_OK);
  CHECK((uint64_t)statistics.allocated_bytes.current == report->allocated_bytes);
  CHECK(cachalot_destroy(it->allocator) == CACHALOT_ERROR_BUSY);
}

static int stop_at_third(void *userdata, const char *key, int64_t value) {
  meeting *it = userdata;
  (void)key, (void)value;
  CHECK(cachalot_destroy(it->allocator) == CACHALOT_ERROR_BUSY);
  return ++it->visited == 3;
}

static int stop_entry(void *userdata, const cachalot_trace_entry *entry) {
  meeting *it = userdata;
  void *block = NULL;
  CHECK(entry->struct_size == sizeof *entry);
  CHECK(cachalot_destroy(it->allocator) == CACHALOT_ERROR_BUSY);
  /* This is recorded too, and not visited by the loop that it happens in. */
  CHECK(cachalot_malloc(it->allocator, 0, 1000, NULL, &block) == CACHALOT_OK);
  CHECK(cachalot_free(it->allocator, block) == CACHALOT_OK);
  return ++it->visited == 100;
}

static int stop_text(void *userdata, const char *part, size_t bytes) {
  meeting *it = userdata;
  CHECK(bytes > 0 && part[0] == '{');
  CHECK(cachalot_destroy(it->allocator) == CACHALOT_ERROR_BUSY);
  ++it->visited;
  return 1;
}

int main(int argc, char **argv) {
  meeting it = {NULL, NULL, 0, 0, 0};
  void *kept = NULL, *served = NULL;
  begin(argc, argv);
  scene_options.limit_bytes = 64 * MEBIBYTE;
  NEEDED(cachalot_create(&scene_options, &it.allocator));
  NEEDED(cachalot_on_shortage(it.allocator, shortage, &it));
  NEEDED(cachalot_on_out_of_memory(it.allocator, out_of_memory, &it));

  /* A callback is asked whenever the cache has nothing, and what it frees serves the request. */
  NEEDED(cachalot_malloc(it.allocator, 0, 40 * MEBIBYTE, NULL, &it.spare));
  CHECK(it.asked == 1 && it.told == 0);
  served = it.spare;
  /* What it frees comes before further memory of the device. */
  NEEDED(cachalot_set_limit(it.allocator, 0, 100 * MEBIBYTE));
  NEEDED(cachalot_malloc(it.allocator, 0, 40 * MEBIBYTE, NULL, &kept));
  NEEDED(cachalot_set_limit(it.allocator, 0, 64 * MEBIBYTE));
  CHECK(it.asked == 2 && it.told == 0 && kept == served);
  CHECK(cachalot_malloc(it.allocator, 0, 50 * MEBIBYTE, NULL, &served) == CACHALOT_ERROR_OUT_OF_MEMORY);
  CHECK(it.asked == 3 && it.told == 1);
  CHECK(strstr(cachalot_last_error(), "Tried to allocate 50 MiB on device 0") != NULL);

  /* Nobody is called any more. */
  NEEDED(cachalot_on_shortage(it.allocator, NULL, NULL));
  NEEDED(cachalot_on_out_of_memory(it.allocator, NULL, NULL));
  CHECK(cachalot_malloc(it.allocator, 0, 90 * MEBIBYTE, NULL, &served) == CACHALOT_ERROR_OUT_OF_MEMORY);
  CHECK(it.asked == 3 && it.told == 1);

  /* Visitors may call the allocator as well. */
  CHECK(cachalot_visit_statistics(it.allocator, 0, stop_at_third, &it) == CACHALOT_ERROR_STOPPED && it.visited == 3);
  it.visited = 0;
  NEEDED(cachalot_trace_start(it.allocator, 0, 1000));
  NEEDED(cachalot_free(it.allocator, kept));
  NEEDED(cachalot_visit_trace(it.allocator, 0, stop_entry, &it));
  CHECK(it.visited == 2);
  it.visited = 98;
  CHECK(cachalot_visit_trace(it.allocator, 0, stop_entry, &it) == CACHALOT_ERROR_STOPPED && it.visited == 100);
  it.visited = 0;
  CHECK(cachalot_snapshot(it.allocator, NULL, stop_text, &it) == CACHALOT_ERROR_STOPPED && it.visited == 1);
  NEEDED(cachalot_destroy(it.allocator));
  return failures != 0;
}
