/*
 * What a cachalot_malloc and a cachalot_free of a cached block cost: one thread, then threads on their own streams,
 * then threads on one stream. Prints nanoseconds a pair and millions of calls a second; asserts nothing about them.
 *
 *   cost [--simulated] [pairs]
 */
#define _POSIX_C_SOURCE 200809L
#include <cachalot.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_THREADS = 16, SLOTS = 64 };

typedef struct work {
  const cachalot_allocator *allocator;
  cachalot_stream stream;
  long pairs;
  atomic_int *waiting;
  int failed;
} work;

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* One cached block, taken and given back again and again. */
static int same_block(const cachalot_allocator *allocator, cachalot_stream stream, size_t bytes, long pairs) {
  long pair;
  for (pair = 0; pair < pairs; ++pair) {
    void *block = NULL;
    if (cachalot_malloc(allocator, 0, bytes, stream, &block) != CACHALOT_OK ||
        cachalot_free(allocator, block) != CACHALOT_OK) {
      return 1;
    }
  }
  return 0;
}

/* 64 blocks of 512 B to 64 KiB are held, and replaced one after the other. */
static void *replace_blocks(void *argument) {
  work *mine = argument;
  void *blocks[SLOTS] = {NULL};
  long pair;
  int slot;
  atomic_fetch_sub(mine->waiting, 1);
  while (atomic_load(mine->waiting) > 0) {
  }
  for (pair = 0; pair < mine->pairs; ++pair) {
    const size_t bytes = (size_t)512 << (pair * 7 % 8);
    slot = (int)(pair % SLOTS);
    mine->failed |= cachalot_free(mine->allocator, blocks[slot]) != CACHALOT_OK;
    mine->failed |= cachalot_malloc(mine->allocator, 0, bytes, mine->stream, &blocks[slot]) != CACHALOT_OK;
  }
  for (slot = 0; slot < SLOTS; ++slot) {
    mine->failed |= cachalot_free(mine->allocator, blocks[slot]) != CACHALOT_OK;
  }
  return NULL;
}

/* Lets `count` threads work; millions of calls a second. */
static double threads(const cachalot_allocator *allocator, int count, int one_stream, long pairs) {
  pthread_t thread[MOST_THREADS];
  work works[MOST_THREADS];
  atomic_int waiting = count;
  double begun = 0;
  int index;
  for (index = 0; index < count; ++index) {
    const work mine = {allocator, (cachalot_stream)(uintptr_t)(0x100000 + 0x1000 * (one_stream ? 0 : index)), pairs,
                       &waiting, 0};
    works[index] = mine;
    if (pthread_create(&thread[index], NULL, replace_blocks, &works[index]) != 0) {
      exit(1);
    }
  }
  begun = now_ns();
  for (index = 0; index < count; ++index) {
    pthread_join(thread[index], NULL);
    if (works[index].failed) {
      fprintf(stderr, "a call failed: %s\n", cachalot_last_error());
      exit(1);
    }
  }
  return 2e3 * (double)pairs * count / (now_ns() - begun);
}

int main(int argc, char **argv) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  long pairs = 2000000;
  int index;
  for (index = 1; index < argc; ++index) {
    if (strcmp(argv[index], "--simulated") == 0) {
      options.flags |= CACHALOT_SIMULATED;
    } else {
      pairs = atol(argv[index]);
    }
  }
  if (cachalot_create(&options, &allocator) != CACHALOT_OK) {
    fprintf(stderr, "%s\n", cachalot_last_error());
    return 1;
  }
  for (index = 0; index < 2; ++index) {
    const size_t bytes = index == 0 ? 4096 : (size_t)64 << 20;
    double best = 0;
    int round;
    for (round = 0; round < 9; ++round) {
      const double begun = now_ns();
      double each;
      if (same_block(allocator, NULL, bytes, pairs / 10) != 0) {
        fprintf(stderr, "%s\n", cachalot_last_error());
        return 1;
      }
      each = (now_ns() - begun) / (double)(pairs / 10);
      best = round == 0 || each < best ? each : best;
    }
    printf("pair of %zu bytes: %.1f ns\n", bytes, best);
  }
  for (index = 1; index <= MOST_THREADS; index *= 2) {
    printf("%2d threads: own streams %.1f, one stream %.1f million calls a second\n", index,
           threads(allocator, index, 0, pairs / index), threads(allocator, index, 1, pairs / index / 4));
  }
  return cachalot_destroy(allocator) == CACHALOT_OK ? 0 : 1;
}
