/*
 * The process ends while a thread of the library keeps an allocator up. Something else takes its time at exit, after the
 * driver's own end. On the emulated driver, a call after this end aborts the process.
 */
#include "../misuse/misuse.h"

#include <unistd.h>

/* Registered before the driver is loaded, so it runs last. The thread would do a hundred rounds. */
static void slow(void) { usleep(100000); }

int main(int argc, char **argv) {
  scene it;
  void *block = NULL;
  if (argc > 1) {
    scene_options.config = argv[1];
  }
  begin(argc, argv);
  CHECK(atexit(slow) == 0);
  it = scene_open();
  NEEDED(cachalot_malloc(it.allocator, 0, 64u << 20, NULL, &block));
  NEEDED(cachalot_free(it.allocator, block));
  NEEDED(cachalot_maintain_every(it.allocator, 500, 1000));
  return failures != 0;
}
