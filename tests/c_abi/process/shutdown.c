/*
 * The driver shuts down under an allocator: what needs it says so and calls it no more, what does not goes on. On the emulated
 * driver a call after its end would abort the process, but for the one that finds out.
 */
#include "streams.h"

int main(int argc, char **argv) {
  void *block = NULL, *more = NULL;
  unsigned long long calls;
  cachalot_stream stream;
  scene it;
  int device;
  begin(argc, argv);
  it = scene_open();
  enter_driver(0);
  stream = make_stream();
  NEEDED(cachalot_malloc(it.allocator, 0, 5000, stream, &block));
  NEEDED(cachalot_malloc(it.allocator, 0, 5000, stream, &more));
  NEEDED(cachalot_record_stream(it.allocator, block, NULL));
  cuda.tear_down(0);

  /* A block that another stream uses needs an event, so the free finds out, and the block stays the program's. */
  CHECK(cachalot_free(it.allocator, block) == CACHALOT_ERROR_SHUTDOWN && cachalot_last_driver_code() == 4);
  CHECK(cachalot_check_health(it.allocator, 0) == CACHALOT_ERROR_SHUTDOWN);
  calls = driver_calls();
  CHECK(cachalot_free(it.allocator, block) == CACHALOT_ERROR_SHUTDOWN);
  CHECK(cachalot_free(it.allocator, more) == CACHALOT_OK);
  CHECK(cachalot_free(it.allocator, it.small) == CACHALOT_OK);
  CHECK(cachalot_free(it.allocator, it.large) == CACHALOT_OK);
  CHECK(cachalot_malloc(it.allocator, 0, 200 << 20, NULL, &more) == CACHALOT_ERROR_SHUTDOWN);
  CHECK(cachalot_stream_destroyed(it.allocator, 0, stream) == CACHALOT_ERROR_SHUTDOWN);
  CHECK(cachalot_empty_cache(it.allocator, 0) == CACHALOT_ERROR_SHUTDOWN);
  CHECK(cachalot_check_invariants(it.allocator) == CACHALOT_OK);
  CHECK(driver_calls() == calls);
  /* Every other device finds out by itself. */
  for (device = 1; device < it.devices; ++device) {
    CHECK(cachalot_malloc(it.allocator, device, 5000, NULL, &more) == CACHALOT_ERROR_SHUTDOWN);
  }
  /* The block that could not be freed. */
  CHECK(cachalot_destroy(it.allocator) == CACHALOT_ERROR_STILL_HELD);
  CHECK(cachalot_destroy(it.allocator) == CACHALOT_ERROR_INVALID_HANDLE);
  return failures != 0;
}
