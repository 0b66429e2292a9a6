// How the programs of this folder end when a call fails: with the call and the code, and status 1.
#ifndef CACHALOT_RUN_CHECK_H
#define CACHALOT_RUN_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                                                                    \
  do {                                                                                                                 \
    int code = (int)(call);                                                                                            \
    if (code != 0) {                                                                                                   \
      fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, code);                                             \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

#define EXPECT(condition)                                                                                              \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                                        \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

// The numbers of a program are the same in every run.
static uint64_t next_number(uint64_t *state) {
  *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
  return *state >> 33;
}

#endif
