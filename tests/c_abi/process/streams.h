/*
 * Streams for the programs of this folder: the driver's, in the primary context of a device, or numbers for simulated devices.
 */
#ifndef STREAMS_H
#define STREAMS_H

#include "../misuse/misuse.h"

typedef struct driver {
  int (*retain)(void **context, int device);
  int (*give_back)(int device);
  int (*set_current)(void *context);
  int (*stream_create)(cachalot_stream *stream, unsigned flags);
  int (*stream_destroy)(cachalot_stream stream);
  int (*stream_synchronize)(cachalot_stream stream);
  int (*begin_capture)(cachalot_stream stream, int mode);
  int (*end_capture)(cachalot_stream stream, void **graph);
  int (*graph_destroy)(void *graph);
  int (*tear_down)(int crash); /* ends the emulated driver as at the end of the process */
} driver;

static driver cuda;

static inline int is_simulated(void) {
  return (scene_options.flags & CACHALOT_SIMULATED) != 0;
}

/* Finds the driver that the allocator has loaded. */
static inline void find_driver(void) {
  const char *path = getenv("CACHALOT_LIBCUDA");
  void *library = path == NULL ? NULL : dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library == NULL) {
    fail(__FILE__, __LINE__, "the driver is not loaded");
    exit(2);
  }
  *(void **)&cuda.retain = dlsym(library, "cuDevicePrimaryCtxRetain");
  *(void **)&cuda.give_back = dlsym(library, "cuDevicePrimaryCtxRelease_v2");
  *(void **)&cuda.set_current = dlsym(library, "cuCtxSetCurrent");
  *(void **)&cuda.stream_create = dlsym(library, "cuStreamCreate");
  *(void **)&cuda.stream_destroy = dlsym(library, "cuStreamDestroy_v2");
  *(void **)&cuda.stream_synchronize = dlsym(library, "cuStreamSynchronize");
  *(void **)&cuda.begin_capture = dlsym(library, "cuStreamBeginCapture_v2");
  *(void **)&cuda.end_capture = dlsym(library, "cuStreamEndCapture");
  *(void **)&cuda.graph_destroy = dlsym(library, "cuGraphDestroy");
  *(void **)&cuda.tear_down = dlsym(library, "emu_tear_down");
}

/* Makes a device's primary context the calling thread's. To be called by the first thread before there are others. */
static inline void enter_driver(int device) {
  void *context = NULL;
  if (is_simulated()) {
    return;
  }
  if (cuda.retain == NULL) {
    find_driver();
  }
  NEEDED(cuda.retain(&context, device));
  NEEDED(cuda.set_current(context));
}

/* Gives the context back. */
static inline void leave_driver(int device) {
  if (!is_simulated()) {
    NEEDED(cuda.set_current(NULL));
    NEEDED(cuda.give_back(device));
  }
}

/* A stream of the thread's device that is not ordered with the default one. */
static inline cachalot_stream make_stream(void) {
  static uintptr_t made = 0x10000;
  cachalot_stream stream;
  if (is_simulated()) {
    made += 64;
    return (cachalot_stream)made;
  }
  NEEDED(cuda.stream_create(&stream, 1));
  return stream;
}

static inline void destroy_stream(cachalot_stream stream) {
  if (!is_simulated()) {
    NEEDED(cuda.stream_destroy(stream));
  }
}

/* Lets a stream come to its end. */
static inline void finish(cachalot_allocator *allocator, cachalot_stream stream) {
  if (is_simulated()) {
    NEEDED(cachalot_simulate_progress(allocator, 0, stream));
  } else {
    NEEDED(cuda.stream_synchronize(stream));
  }
}

/* Device memory that is held, and blocks that are in use or pending. */
static inline int64_t statistic(cachalot_allocator *allocator, const char *key) {
  int64_t value = 0;
  NEEDED(cachalot_find_statistic(allocator, 0, key, &value));
  return value;
}

#endif
