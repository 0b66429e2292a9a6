/*
 * Idle memory that a thread of the library gives back under `reclaim:auto`, while another block stays in use and requests
 * go on. The configuration is the last argument.
 */
#include "../misuse/misuse.h"

#include <time.h>
#include <unistd.h>

enum { MEBIBYTE = 1 << 20, SECONDS = 20 };

static int64_t reserved(const cachalot_allocator *allocator) {
  int64_t bytes = 0;
  NEEDED(cachalot_find_statistic(allocator, 0, "reserved_bytes.all.current", &bytes));
  return bytes;
}

int main(int argc, char **argv) {
  cachalot_reclaim_statistics reclaimed = CACHALOT_RECLAIM_STATISTICS_INIT;
  cachalot_allocator *allocator;
  void *kept, *idle[3], *block;
  int64_t before;
  time_t began;
  int index;
  begin(argc, argv);
  scene_options.config = argv[argc - 1];
  NEEDED(cachalot_create(&scene_options, &allocator));
  NEEDED(cachalot_get_reclaim_statistics(allocator, 0, &reclaimed));
  CHECK(reclaimed.looks == 0 && reclaimed.given_back_bytes == 0);
  NEEDED(cachalot_malloc(allocator, 0, 40 * MEBIBYTE, NULL, &kept));
  for (index = 0; index < 3; ++index) {
    NEEDED(cachalot_malloc(allocator, 0, 40 * MEBIBYTE, NULL, &idle[index]));
  }
  for (index = 0; index < 3; ++index) {
    NEEDED(cachalot_free(allocator, idle[index]));
  }
  before = reserved(allocator);
  NEEDED(cachalot_maintain_every(allocator, 20000, 2000));
  for (began = time(NULL); reserved(allocator) > before - 120 * MEBIBYTE && time(NULL) - began < SECONDS;) {
    /* Small blocks come from other segments. */
    NEEDED(cachalot_malloc(allocator, 0, 1000, NULL, &block));
    NEEDED(cachalot_free(allocator, block));
    if (scene_options.flags & CACHALOT_SIMULATED) {
      NEEDED(cachalot_simulate_progress(allocator, 0, NULL));
    }
    usleep(1000);
  }
  NEEDED(cachalot_maintain_every(allocator, 0, 0));
  NEEDED(cachalot_get_reclaim_statistics(allocator, 0, &reclaimed));
  CHECK(reserved(allocator) <= before - 120 * MEBIBYTE + 2 * MEBIBYTE);
  CHECK(reclaimed.looks > 10 && reclaimed.given_back_bytes >= 120 * MEBIBYTE && reclaimed.given_back_units >= 3);
  CHECK(reclaimed.obtained_again_bytes == 0 && reclaimed.too_early_units == 0);
  NEEDED(cachalot_malloc(allocator, 0, 40 * MEBIBYTE, NULL, &idle[0]));
  NEEDED(cachalot_free(allocator, idle[0]));
  NEEDED(cachalot_free(allocator, kept));
  NEEDED(cachalot_check_invariants(allocator));
  NEEDED(cachalot_destroy(allocator));
  return failures != 0;
}
