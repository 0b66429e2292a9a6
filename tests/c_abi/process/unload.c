/* The shared library is loaded, used, and unloaded again, while a thread that used it lives on. Its path is the
 * argument. */
#define _GNU_SOURCE
#include <cachalot.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct library {
  void *handle;
  cachalot_status (*create)(const cachalot_options *, cachalot_allocator **);
  cachalot_status (*destroy)(cachalot_allocator *);
  cachalot_status (*malloc)(const cachalot_allocator *, int, size_t, cachalot_stream, void **);
  cachalot_status (*free)(const cachalot_allocator *, void *);
  const char *(*last_error)(void);
} library;

static pthread_barrier_t unloaded;

static void *symbol(void *handle, const char *name) {
  void *found = dlsym(handle, name);
  if (found == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  return found;
}

static void use(const library *it) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  void *block = NULL;
  options.flags = CACHALOT_SIMULATED;
  if (it->create(&options, &allocator) != CACHALOT_OK || it->malloc(allocator, 0, 100, NULL, &block) != CACHALOT_OK ||
      it->free(allocator, &block) != CACHALOT_ERROR_INVALID_POINTER || strlen(it->last_error()) == 0 ||
      it->free(allocator, block) != CACHALOT_OK || it->destroy(allocator) != CACHALOT_OK) {
    fprintf(stderr, "%s\n", it->last_error());
    exit(1);
  }
}

/* Ends after the library is gone. */
static void *visit(void *argument) {
  use(argument);
  pthread_barrier_wait(&unloaded);
  pthread_barrier_wait(&unloaded);
  return NULL;
}

int main(int argc, char **argv) {
  int round;
  if (argc < 2) {
    return 2;
  }
  for (round = 0; round < 3; ++round) {
    library it;
    pthread_t thread;
    it.handle = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (it.handle == NULL) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    *(void **)&it.create = symbol(it.handle, "cachalot_create");
    *(void **)&it.destroy = symbol(it.handle, "cachalot_destroy");
    *(void **)&it.malloc = symbol(it.handle, "cachalot_malloc");
    *(void **)&it.free = symbol(it.handle, "cachalot_free");
    *(void **)&it.last_error = symbol(it.handle, "cachalot_last_error");
    if (pthread_barrier_init(&unloaded, NULL, 2) != 0 || pthread_create(&thread, NULL, visit, &it) != 0) {
      return 1;
    }
    use(&it);
    pthread_barrier_wait(&unloaded);
    if (dlclose(it.handle) != 0) {
      return 1;
    }
    pthread_barrier_wait(&unloaded);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&unloaded);
  }
  return 0;
}
