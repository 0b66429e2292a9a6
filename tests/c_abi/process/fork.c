/*
 * Every function in a forked child, while other threads of the parent are inside the allocator and may hold its locks:
 * each answers that it is a child, at once and without a call of the driver. The parent goes on.
 */
#include "../misuse/every_call.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 2, CHILDREN = 20 };

static atomic_int stop;

static void *hammer(void *argument) {
  const cachalot_allocator *allocator = argument;
  while (!atomic_load(&stop)) {
    void *block = NULL;
    NEEDED(cachalot_malloc(allocator, 0, 5000, NULL, &block));
    NEEDED(cachalot_free(allocator, block));
  }
  return NULL;
}

#define IN_CHILD(name, arguments) CHECK(name arguments == CACHALOT_ERROR_FORKED);

/* What the child does; its status. */
static int child(const scene *it) {
  cachalot_allocator *made = NULL;
  const cachalot_allocator *allocator = it->allocator;
  const int device = 0;
  const cachalot_pool pool = it->pool;
  void *block = it->small;
  failures = 0;
  EVERY_CALL(IN_CHILD, IN_CHILD)
  CHECK(cachalot_create(&scene_options, &made) == CACHALOT_ERROR_FORKED && made == NULL);
  CHECK(cachalot_destroy(it->allocator) == CACHALOT_ERROR_FORKED);
  CHECK(cachalot_destroy(NULL) == CACHALOT_OK);
  CHECK(strstr(cachalot_last_error(), "fork") != NULL);
  return failures;
}

/* A child of a process that has made no allocator is on its own, whatever else its parent has called. */
static void independent_child(void) {
  int status = -1;
  pid_t id;
  CHECK(cachalot_free(NULL, NULL) == CACHALOT_ERROR_NULL && cachalot_destroy(NULL) == CACHALOT_OK);
  id = fork();
  if (id == 0) {
    scene own = scene_open();
    scene_close(&own);
    _exit(failures);
  }
  CHECK(id > 0 && waitpid(id, &status, 0) == id && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv) {
  pthread_t threads[THREADS];
  scene it;
  int index;
  begin(argc, argv);
  independent_child();
  it = scene_open();
  for (index = 0; index < THREADS; ++index) {
    CHECK(pthread_create(&threads[index], NULL, hammer, it.allocator) == 0);
  }
  for (index = 0; index < CHILDREN; ++index) {
    int status = -1;
    const pid_t id = fork();
    if (id == 0) {
      /* A child that hangs is ended by this, and seen. */
      alarm(30);
      _exit(child(&it));
    }
    CHECK(id > 0 && waitpid(id, &status, 0) == id && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  atomic_store(&stop, 1);
  for (index = 0; index < THREADS; ++index) {
    CHECK(pthread_join(threads[index], NULL) == 0);
  }
  scene_close(&it);
  return failures != 0;
}
