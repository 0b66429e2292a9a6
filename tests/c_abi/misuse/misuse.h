/*
 * What every misuse test shares: an allocator with something in it, and proof that a refused call changed nothing.
 *
 * Each program does one kind of thing that a program must not do, and expects the status that the header promises.
 * Before and after each refused call everything that can be seen of the allocators is compared, and on the emulated
 * driver how many driver calls there were. Runs on simulated devices with `--simulated`, else on the driver.
 */
#ifndef MISUSE_H
#define MISUSE_H

#define _GNU_SOURCE /* RTLD_NOLOAD */
#define CACHALOT_EXPERIMENTAL
#include <cachalot.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A text that grows. */
typedef struct text {
  char *bytes;
  size_t length;
} text;

/* An allocator with blocks in use, a cached block and a private pool. */
typedef struct scene {
  cachalot_allocator *allocator;
  int devices;
  void *small; /* 1,000 bytes */
  void *large; /* 3 MiB */
  cachalot_pool pool;
} scene;

static int failures = 0;
static cachalot_options scene_options = CACHALOT_OPTIONS_INIT;

static inline void fail(const char *file, int line, const char *what) {
  fprintf(stderr, "%s:%d: %s (last error: %s)\n", file, line, what, cachalot_last_error());
  ++failures;
}

/* Ends the program if what it stands on does not work. */
#define NEEDED(call)                   \
  do {                                 \
    if ((call) != CACHALOT_OK) {       \
      fail(__FILE__, __LINE__, #call); \
      exit(2);                         \
    }                                  \
  } while (0)

#define CHECK(condition)                    \
  do {                                      \
    if (!(condition)) {                     \
      fail(__FILE__, __LINE__, #condition); \
    }                                       \
  } while (0)

/* Finds a function of a loaded library. */
#define FIND(library, function, name)               \
  do {                                              \
    *(void **)&(function) = dlsym((library), name); \
    CHECK((function) != NULL);                      \
  } while (0)

static inline int append(void *userdata, const char *part, size_t bytes) {
  text *whole = userdata;
  whole->bytes = realloc(whole->bytes, whole->length + bytes + 1);
  if (whole->bytes == NULL) {
    exit(2);
  }
  memcpy(whole->bytes + whole->length, part, bytes);
  whole->length += bytes;
  whole->bytes[whole->length] = '\0';
  return 0;
}

static inline int append_stat(void *userdata, const char *key, int64_t value) {
  char line[128];
  return append(userdata, line, (size_t)snprintf(line, sizeof line, "%s %lld\n", key, (long long)value));
}

/* How many calls the emulated driver has had; 0 on any other. */
static inline unsigned long long driver_calls(void) {
  const char *path = getenv("CACHALOT_LIBCUDA");
  void *library = path == NULL ? NULL : dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  uint64_t (*calls)(const char *) = NULL;
  if (library == NULL) {
    return 0;
  }
  *(void **)&calls = dlsym(library, "emu_calls");
  return calls == NULL ? 0 : calls(NULL);
}

/* Everything that can be seen of an allocator: segments, blocks, statistics, settings, limits, users of pools. */
static inline text seen(const scene *it) {
  text all = {NULL, 0};
  int device;
  NEEDED(cachalot_snapshot(it->allocator, NULL, append, &all));
  for (device = 0; device < it->devices; ++device) {
    char config[512];
    uint32_t users = 0;
    NEEDED(cachalot_visit_statistics(it->allocator, device, append_stat, &all));
    NEEDED(cachalot_get_config(it->allocator, device, config, sizeof config, NULL));
    append(&all, config, strlen(config));
    if (device == 0) {
      NEEDED(cachalot_get_pool_users(it->allocator, 0, it->pool, &users));
      append_stat(&all, "users", users);
    }
  }
  return all;
}

/* Expects a status of a call that must change nothing, and make no driver call. */
#define REFUSED(it, status, call)                                                                                     \
  do {                                                                                                                \
    text before_ = seen(it), after_;                                                                                  \
    const unsigned long long calls_ = driver_calls();                                                                 \
    const cachalot_status got_ = (call);                                                                              \
    const unsigned long long more_ = driver_calls() - calls_;                                                         \
    after_ = seen(it);                                                                                                \
    if (got_ != (status)) {                                                                                           \
      fprintf(stderr, "%s:%d: %s: %s, and not %s\n", __FILE__, __LINE__, #call, cachalot_status_name(got_), #status); \
      ++failures;                                                                                                     \
    }                                                                                                                 \
    if (more_ != 0) {                                                                                                 \
      fail(__FILE__, __LINE__, #call ": the driver was called");                                                      \
    }                                                                                                                 \
    if (strcmp(before_.bytes, after_.bytes) != 0) {                                                                   \
      fail(__FILE__, __LINE__, #call ": something changed");                                                          \
    }                                                                                                                 \
    free(before_.bytes);                                                                                              \
    free(after_.bytes);                                                                                               \
  } while (0)

static inline scene scene_open(void) {
  scene it = {NULL, 0, NULL, NULL, {0, 0}};
  void *cached = NULL;
  NEEDED(cachalot_create(&scene_options, &it.allocator));
  NEEDED(cachalot_get_device_count(it.allocator, &it.devices));
  NEEDED(cachalot_malloc(it.allocator, 0, 1000, NULL, &it.small));
  NEEDED(cachalot_malloc(it.allocator, 0, 3 << 20, NULL, &it.large));
  NEEDED(cachalot_malloc(it.allocator, 0, 5000, NULL, &cached));
  NEEDED(cachalot_free(it.allocator, cached));
  NEEDED(cachalot_pool_create(it.allocator, 0, 0, &it.pool));
  /* Calls can be counted, where there is a driver that counts them. */
  CHECK((driver_calls() > 0) == ((scene_options.flags & CACHALOT_SIMULATED) == 0));
  return it;
}

/* Everything goes back, and the books are in order: whatever was refused left no trace. */
static inline void scene_close(scene *it) {
  NEEDED(cachalot_check_invariants(it->allocator));
  NEEDED(cachalot_free_sized(it->allocator, it->small, 1000));
  NEEDED(cachalot_free_sized(it->allocator, it->large, 3 << 20));
  NEEDED(cachalot_pool_release(it->allocator, 0, it->pool));
  NEEDED(cachalot_destroy(it->allocator));
}

/* Reads the arguments. */
static inline void begin(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "--simulated") == 0) {
    scene_options.flags |= CACHALOT_SIMULATED;
  }
}

#endif
