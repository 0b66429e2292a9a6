/*
 * Allocators that end while the program's context lives on: nothing of them is left in the driver. Runs on the emulated driver.
 *
 *   ended CONFIG
 */
#include "../misuse/misuse.h"

#include <stdlib.h>
#include <string.h>

unsigned cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
unsigned cuStreamCreate(cachalot_stream *, unsigned), cuStreamDestroy_v2(cachalot_stream);
int emu_plan(const char *);
void emu_plan_clear(void);
unsigned long long emu_report(char *, unsigned long long);

enum { ALLOCATORS = 20, STREAMS = 4, BLOCKS = 40, TEXT = 4096 };

#define DRIVER(call) NEEDED((int)(call))

/* The number behind a key of the emulated driver's report. */
static long left(const char *key) {
  static char report[TEXT];
  CHECK(emu_report(report, sizeof report) < sizeof report);
  const char *const found = strstr(report, key);
  CHECK(found != NULL);
  return found == NULL ? -1 : strtol(found + strlen(key), NULL, 10);
}

static cachalot_allocator *create(const char *config, uint32_t flags) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  const int first = 0;
  options.devices = &first;
  options.device_count = 1;
  options.config = config;
  options.flags = flags;
  NEEDED(cachalot_create(&options, &allocator));
  return allocator;
}

static void use_on_every_stream(const cachalot_allocator *allocator, const cachalot_stream *streams) {
  for (int number = 0; number < BLOCKS; ++number) {
    void *block = NULL;
    NEEDED(cachalot_malloc(allocator, 0, 1000, NULL, &block));
    for (int stream = 0; stream < STREAMS; ++stream) {
      NEEDED(number % 2 ? cachalot_record_stream(allocator, block, streams[stream])
                        : cachalot_record_use(allocator, block, streams[stream]));
    }
    NEEDED(cachalot_free(allocator, block));
  }
}

/* A failure of the driver is none of the handle, and the stream can be reported again. */
static void a_failing_driver_is_no_wrong_handle(const char *config) {
  const char *const rules[] = {"[{\"fn\":\"cuStreamIsCapturing\",\"code\":1}]", "[{\"fn\":\"cuCtxGetCurrent\",\"code\":1}]",
                               "[{\"fn\":\"cuThreadExchangeStreamCaptureMode\",\"code\":1}]"};
  cachalot_allocator *const allocator = create(config, 0);
  for (size_t rule = 0; rule < sizeof rules / sizeof rules[0]; ++rule) {
    cachalot_stream stream = NULL;
    DRIVER(cuStreamCreate(&stream, 1));
    CHECK(emu_plan(rules[rule]) == 0);
    const cachalot_status reported = cachalot_stream_destroyed(allocator, 0, stream);
    emu_plan_clear();
    CHECK(reported == CACHALOT_OK || reported == CACHALOT_ERROR_DRIVER);
    if (reported != CACHALOT_OK) {
      CHECK(cachalot_last_driver_code() == 1);
      NEEDED(cachalot_stream_destroyed(allocator, 0, stream));
    }
    DRIVER(cuStreamDestroy_v2(stream));
  }
  CHECK(cachalot_stream_destroyed(allocator, 0, NULL) == CACHALOT_ERROR_INVALID_STREAM);
  NEEDED(cachalot_destroy(allocator));
}

/* What the driver would not release is named at the end. */
static void a_failed_release_is_named(uint32_t flags, const char *release) {
  cachalot_allocator *const allocator = create("", flags);
  void *block = NULL;
  NEEDED(cachalot_malloc(allocator, 0, 1000, NULL, &block));
  NEEDED(cachalot_free(allocator, block));
  char rule[100];
  snprintf(rule, sizeof rule, "[{\"fn\":\"%s\",\"code\":999}]", release);
  CHECK(emu_plan(rule) == 0);
  CHECK(cachalot_empty_cache(allocator, 0) == CACHALOT_ERROR_DRIVER);
  emu_plan_clear();
  CHECK(cachalot_destroy(allocator) == CACHALOT_ERROR_STILL_HELD);
  CHECK(strstr(cachalot_last_error(), "bytes are in doubt, because the driver failed to release them") != NULL);
  CHECK(strstr(cachalot_last_error(), "a private pool has users") == NULL);
}

int main(int count, char **arguments) {
  cachalot_stream streams[STREAMS];
  void *context = NULL;
  if (count != 2) {
    fprintf(stderr, "usage: ended CONFIG\n");
    return 2;
  }
  DRIVER(cuInit(0));
  DRIVER(cuDevicePrimaryCtxRetain(&context, 0));
  DRIVER(cuCtxSetCurrent(context));
  for (int stream = 0; stream < STREAMS; ++stream) {
    DRIVER(cuStreamCreate(&streams[stream], 1));
  }
  for (int number = 0; number < ALLOCATORS; ++number) {
    const uint32_t flags[] = {0, CACHALOT_ASK_STREAM_ID, CACHALOT_HOST};
    cachalot_allocator *const allocator = create(arguments[1], flags[number % 3]);
    use_on_every_stream(allocator, streams);
    NEEDED(cachalot_destroy(allocator));
    CHECK(left("\"events\":") == 0);
    CHECK(left("\"streams\":") == STREAMS);
    CHECK(left("\"allocated_bytes\":") == 0 && left("\"pinned_bytes\":") == 0 && left("\"reservations\":") == 0);
  }
  a_failing_driver_is_no_wrong_handle(arguments[1]);
  a_failed_release_is_named(0, "cuMemFree_v2");
  a_failed_release_is_named(CACHALOT_HOST, "cuMemHostUnregister");
  if (failures == 0) {
    puts("ended: well");
  }
  return failures == 0 ? 0 : 1;
}
