// How the programs of this folder end when a call fails: with the call and the reason, and status 1.
#ifndef CACHALOT_BENCHES_CHECK_H
#define CACHALOT_BENCHES_CHECK_H

#include "cachalot.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

inline void check(bool fine, const char *what) {
  if (!fine) {
    std::fprintf(stderr, "%s failed\n", what);
    std::exit(1);
  }
}

inline void check(cudaError_t error, const char *what) {
  if (error != cudaSuccess) {
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
  }
}

inline void check_status(cachalot_status status, const char *what) {
  if (status != CACHALOT_OK) {
    std::fprintf(stderr, "%s: %s\n", what, cachalot_last_error());
    std::exit(1);
  }
}

#endif
