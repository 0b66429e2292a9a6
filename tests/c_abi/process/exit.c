/*
 * The process ends with an allocator alive: blocks held, frees pending, a trace running, threads that came and went.
 * The library calls nobody then. On the emulated driver, a call after its own end aborts the process.
 *
 *   exit [--simulated] [--late]      --late: a function that runs at exit goes on using the allocator
 */
#include "../misuse/misuse.h"

#include <pthread.h>

static scene it;
static void *cached;

/* Runs after main, and after the driver's own end if the driver came later. */
static void at_exit(void) {
  void *block = NULL;
  cachalot_status status = cachalot_malloc(it.allocator, 0, 5000, NULL, &block);
  /* What is cached needs no driver; what needs it is refused if the driver is gone. */
  if (status == CACHALOT_OK) {
    status = cachalot_free(it.allocator, block);
  }
  if (status != CACHALOT_OK && status != CACHALOT_ERROR_SHUTDOWN) {
    fprintf(stderr, "at exit: %s: %s\n", cachalot_status_name(status), cachalot_last_error());
    _Exit(3);
  }
  status = cachalot_empty_cache(it.allocator, 0);
  if (status != CACHALOT_OK && status != CACHALOT_ERROR_SHUTDOWN) {
    fprintf(stderr, "at exit: %s: %s\n", cachalot_status_name(status), cachalot_last_error());
    _Exit(3);
  }
}

/* A thread that leaves a block, a pending free and an error behind. */
static void *visit(void *argument) {
  void *block = NULL;
  (void)argument;
  NEEDED(cachalot_malloc(it.allocator, 0, 5000, (cachalot_stream)(uintptr_t)2, &block));
  NEEDED(cachalot_record_stream(it.allocator, block, NULL));
  NEEDED(cachalot_free(it.allocator, block));
  NEEDED(cachalot_malloc(it.allocator, 0, 7000, NULL, &block));
  CHECK(cachalot_free(it.allocator, &block) == CACHALOT_ERROR_INVALID_POINTER);
  return NULL;
}

int main(int argc, char **argv) {
  int index;
  begin(argc, argv);
  if (argc > 1 && strcmp(argv[argc - 1], "--late") == 0) {
    atexit(at_exit);
  }
  it = scene_open();
  NEEDED(cachalot_trace_start(it.allocator, 0, 100));
  for (index = 0; index < 4; ++index) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, visit, NULL) == 0 && pthread_join(thread, NULL) == 0);
  }
  NEEDED(cachalot_malloc(it.allocator, 0, 5000, NULL, &cached));
  NEEDED(cachalot_free(it.allocator, cached));
  return failures != 0;
}
