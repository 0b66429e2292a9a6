// Holds all of its blocks from the first to the last round, so that it needs the memory of all at the same time. In each round
// kernels change every word of each block. Prints a sum of all contents, the same in every run.
//
// usage: holds [MIB]
#include "check.h"

#include <cuda_runtime.h>

namespace {

constexpr int BLOCKS = 24;
constexpr int ROUNDS = 8;

__global__ void change(uint32_t *words, size_t count, uint32_t seed) {
  for (size_t at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += size_t(gridDim.x) * blockDim.x)
    words[at] = words[at] * 2654435761u + seed + uint32_t(at);
}

__global__ void add(const uint32_t *words, size_t count, unsigned long long *sum) {
  unsigned long long mine = 0;
  for (size_t at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += size_t(gridDim.x) * blockDim.x) mine += words[at];
  atomicAdd(sum, mine);
}

} // namespace

int main(int argc, char **argv) {
  size_t bytes = size_t(argc > 1 ? atoi(argv[1]) : 1536) / BLOCKS << 20, count = bytes / 4;
  uint32_t *blocks[BLOCKS];
  unsigned long long *sum, found;
  CHECK(cudaMalloc(reinterpret_cast<void **>(&sum), sizeof found));
  CHECK(cudaMemset(sum, 0, sizeof found));
  for (uint32_t *&block : blocks) {
    CHECK(cudaMalloc(reinterpret_cast<void **>(&block), bytes));
    CHECK(cudaMemset(block, 1, bytes));
  }
  for (int round = 0; round < ROUNDS; round++)
    for (int i = 0; i < BLOCKS; i++) {
      change<<<256, 256>>>(blocks[i], count, uint32_t(round * BLOCKS + i));
      CHECK(cudaGetLastError());
    }
  for (uint32_t *block : blocks) {
    add<<<256, 256>>>(block, count, sum);
    CHECK(cudaGetLastError());
  }
  CHECK(cudaMemcpy(&found, sum, sizeof found, cudaMemcpyDeviceToHost));
  for (uint32_t *block : blocks) CHECK(cudaFree(block));
  CHECK(cudaFree(sum));
  printf("holds %zu MiB sum %llx\n", bytes * BLOCKS >> 20, found);
  return 0;
}
