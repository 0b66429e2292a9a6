// The functions of the CUDA runtime that the C++ headers call, for programs on simulated devices: without a GPU, the
// real runtime cannot start.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#define EXPECT(condition)                                                                \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                      \
    }                                                                                    \
  } while (false)

// The device that is current, and how often a stream was waited for.
inline int current_device = 0;
inline int waits = 0;
inline cudaError_t answer = cudaSuccess;

extern "C" {

inline cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return answer;
}

inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
  ++waits;
  return answer;
}

inline const char* cudaGetErrorString(cudaError_t) {
  return "an error of the runtime";
}
}
