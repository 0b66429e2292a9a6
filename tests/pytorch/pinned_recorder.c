/*
 * Writes down what a program asks of cachalot's pinned memory, for tests/pytorch/pinned_programs.py.
 *
 *   cc -shared -fPIC -O2 pinned_recorder.c -o recorder.so
 *   LD_PRELOAD=recorder.so PINNED_RECORD=FILE PINNED_LIBRARY=libcachalot.so.0.1 python ...
 *
 * Stands before three functions of libcachalot. Each call becomes a line of FILE:
 *   a,NUMBER,BYTES   a block is requested
 *   u,NUMBER,STREAM  a stream uses the block; streams are numbered from 0
 *   f,NUMBER         the block is freed
 * A block keeps its number until it is freed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int (*malloc_function)(void *, int, size_t, void *, void **);
typedef int (*block_function)(void *, void *);
typedef int (*stream_function)(void *, void *, void *);

enum { MOST = 1 << 16, STREAMS = 64 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static FILE *file;
/* The live blocks, in no order. */
static struct {
  void *block;
  uint64_t number;
} live[MOST];
static int count;
static uint64_t next_number;
static void *streams[STREAMS];
static int stream_count;

static void *function(const char *name) {
  static void *library;
  if (library == NULL) {
    library = dlopen(getenv("PINNED_LIBRARY"), RTLD_LAZY | RTLD_NOLOAD);
  }
  void *found = library == NULL ? NULL : dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "the recorder does not find %s\n", name);
    abort();
  }
  return found;
}

/* Opens the file at the first line, so that processes without pinned memory leave none. */
static FILE *out(void) {
  if (file == NULL) {
    file = fopen(getenv("PINNED_RECORD"), "w");
    if (file == NULL) {
      perror("PINNED_RECORD");
      abort();
    }
  }
  return file;
}

static int find(const void *block) {
  int at = count;
  while (at > 0 && live[at - 1].block != block) {
    --at;
  }
  return at - 1;
}

static int number_of(void *stream) {
  int at = 0;
  while (at < stream_count && streams[at] != stream) {
    ++at;
  }
  if (at == stream_count && stream_count < STREAMS) {
    streams[stream_count++] = stream;
  }
  return at;
}

int cachalot_malloc(void *allocator, int device, size_t bytes, void *stream, void **block) {
  const int status = ((malloc_function)function("cachalot_malloc"))(allocator, device, bytes, stream, block);
  pthread_mutex_lock(&mutex);
  if (status == 0 && *block != NULL) {
    if (count == MOST) {
      fprintf(stderr, "the recorder has room for %d blocks\n", MOST);
      abort();
    }
    live[count].block = *block;
    live[count].number = next_number++;
    fprintf(out(), "a,%llu,%zu\n", (unsigned long long)live[count].number, bytes);
    ++count;
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

int cachalot_record_stream(void *allocator, void *block, void *stream) {
  const int status = ((stream_function)function("cachalot_record_stream"))(allocator, block, stream);
  pthread_mutex_lock(&mutex);
  const int at = status == 0 ? find(block) : -1;
  if (at >= 0) {
    fprintf(out(), "u,%llu,%d\n", (unsigned long long)live[at].number, number_of(stream));
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

int cachalot_free(void *allocator, void *block) {
  pthread_mutex_lock(&mutex);
  const int at = find(block);
  if (at >= 0) {
    fprintf(out(), "f,%llu\n", (unsigned long long)live[at].number);
    fflush(file);
    live[at] = live[--count];
  }
  pthread_mutex_unlock(&mutex);
  return ((block_function)function("cachalot_free"))(allocator, block);
}
