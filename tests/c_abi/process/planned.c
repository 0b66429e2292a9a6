/*
 * A program that repeats itself under the planned policy: an iteration is observed, planned in the background and served
 * from one segment, on two streams, while one block of each iteration is used by the other stream.
 */
#include "../misuse/misuse.h"

#include <unistd.h>

enum { MEBIBYTE = 1 << 20, PATIENCE = 60000 };

/* The default stream and the calling thread's own. */
static cachalot_stream stream(int number) {
  return (cachalot_stream)(uintptr_t)number;
}

/* The addresses that an iteration gets. */
typedef struct iteration {
  void *blocks[4];
} iteration;

static iteration iterate(cachalot_allocator *allocator) {
  iteration it;
  NEEDED(cachalot_begin_iteration(allocator, 0));
  NEEDED(cachalot_malloc(allocator, 0, 3 * MEBIBYTE, stream(1), &it.blocks[0]));
  NEEDED(cachalot_malloc(allocator, 0, 1000, stream(2), &it.blocks[1]));
  NEEDED(cachalot_record_stream(allocator, it.blocks[1], stream(1)));
  NEEDED(cachalot_free(allocator, it.blocks[0]));
  NEEDED(cachalot_malloc(allocator, 0, 2 * MEBIBYTE, stream(1), &it.blocks[2]));
  NEEDED(cachalot_free_sized(allocator, it.blocks[1], 1000));
  NEEDED(cachalot_malloc(allocator, 0, 1000, stream(2), &it.blocks[3]));
  NEEDED(cachalot_free(allocator, it.blocks[2]));
  NEEDED(cachalot_free(allocator, it.blocks[3]));
  return it;
}

static cachalot_plan_report planned(cachalot_allocator *allocator) {
  cachalot_plan_report report = CACHALOT_PLAN_REPORT_INIT;
  NEEDED(cachalot_get_plan_report(allocator, 0, &report));
  return report;
}

int main(int argc, char **argv) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  cachalot_plan_report report;
  iteration first, second;
  int turn;

  options.flags = argc > 1 && strcmp(argv[1], "--simulated") == 0 ? CACHALOT_SIMULATED : 0;
  options.config = "policy:planned,fallback:caching,plan_deadline_ms:50";
  NEEDED(cachalot_create(&options, &allocator));
  CHECK(planned(allocator).stage == CACHALOT_STAGE_WAITING);
  for (turn = 0; turn < PATIENCE && planned(allocator).stage != CACHALOT_STAGE_SERVING; ++turn) {
    iterate(allocator);
    usleep(1000);
  }
  CHECK(planned(allocator).stage == CACHALOT_STAGE_SERVING);

  /* The other stream's use takes its time on a device that works by itself: until it is done the block's place is occupied. */
  second = iterate(allocator);
  for (turn = 0; turn < PATIENCE; ++turn) {
    first = second;
    if (options.flags == CACHALOT_SIMULATED) {
      NEEDED(cachalot_simulate_progress(allocator, 0, stream(1)));
    }
    usleep(1000);
    second = iterate(allocator);
    if (memcmp(&first, &second, sizeof first) == 0) {
      break;
    }
  }
  CHECK(memcmp(&first, &second, sizeof first) == 0);
  CHECK(first.blocks[0] == first.blocks[2] && first.blocks[1] != first.blocks[3]);
  report = planned(allocator);
  CHECK(report.plans == 1 && report.extra == 0 && report.missing == 0 && report.given_up == 0);
  CHECK(report.peak_bytes == report.lower_bound_bytes && report.segment_bytes == 6 * MEBIBYTE);
  NEEDED(cachalot_check_invariants(allocator));
  if (options.flags == CACHALOT_SIMULATED) {
    NEEDED(cachalot_simulate_progress(allocator, 0, stream(1)));
  }

  /* A program that goes on otherwise is observed again. */
  for (turn = 0; turn < PATIENCE && planned(allocator).given_up == 0; ++turn) {
    NEEDED(cachalot_begin_iteration(allocator, 0));
    NEEDED(cachalot_malloc(allocator, 0, 7 * MEBIBYTE, stream(1), &first.blocks[0]));
    NEEDED(cachalot_free(allocator, first.blocks[0]));
  }
  CHECK(planned(allocator).given_up == 1);
  CHECK(cachalot_destroy(allocator) == CACHALOT_OK);
  return failures > 0;
}
