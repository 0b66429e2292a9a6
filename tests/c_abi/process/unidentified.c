/*
 * With CACHALOT_ASK_STREAM_ID, a driver that fails to identify a stream is a failure of the driver, and no mistake of the program.
 *
 *   unidentified STATUS CODE
 *
 * The driver's plan lets a call about the stream fail with CODE.
 */
#include "streams.h"

int main(int argc, char **argv) {
  scene it;
  cachalot_stream stream;
  void *block = NULL;
  cachalot_status expected;
  begin(argc, argv);
  expected = (cachalot_status)atoi(argv[argc - 2]);
  scene_options.flags |= CACHALOT_ASK_STREAM_ID;
  it = scene_open();
  enter_driver(0);
  stream = make_stream();
  CHECK(cachalot_malloc(it.allocator, 0, 5000, stream, &block) == expected);
  CHECK(cachalot_last_driver_code() == (uint32_t)atoi(argv[argc - 1]));
  destroy_stream(stream);
  leave_driver(0);
  return failures != 0;
}
