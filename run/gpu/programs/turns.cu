// A program that waits for its turn: it holds blocks of many sizes, and at each line of the standard input a kernel changes every
// word of every block. Prints a digest of all words after each turn. The output is the same in every run.
//
// usage: turns MIB
#include "check.h"

#include <cuda_runtime.h>

#include <vector>

namespace {

struct Block {
  uint32_t *words;
  size_t count;
};

__global__ void begin(uint32_t *words, size_t count, uint32_t seed) {
  for (size_t at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += size_t(gridDim.x) * blockDim.x)
    words[at] = seed * 2654435761u + uint32_t(at);
}

__global__ void turn(uint32_t *words, size_t count, unsigned long long *sum) {
  unsigned long long mine = 0;
  for (size_t at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += size_t(gridDim.x) * blockDim.x) {
    words[at] = words[at] * 1664525u + 1013904223u;
    mine += words[at] * (at + 1);
  }
  atomicAdd(sum, mine);
}

} // namespace

int main(int argc, char **argv) {
  size_t left = size_t(argc > 1 ? atoll(argv[1]) : 256) << 20;
  uint64_t state = 11;
  std::vector<Block> blocks;
  unsigned long long *sum;
  CHECK(cudaMalloc(&sum, sizeof *sum));
  while (left >= (1 << 20)) {
    size_t bytes = size_t(1024) << next_number(&state) % 20;
    bytes = bytes < left ? bytes : left;
    Block block{nullptr, bytes / 4};
    CHECK(cudaMalloc(&block.words, bytes));
    begin<<<256, 256>>>(block.words, block.count, uint32_t(blocks.size()));
    blocks.push_back(block);
    left -= bytes;
  }
  CHECK(cudaDeviceSynchronize());
  printf("ready\n");
  fflush(stdout);
  char line[64];
  for (int number = 0; fgets(line, sizeof line, stdin); number++) {
    unsigned long long digest = 0;
    CHECK(cudaMemset(sum, 0, sizeof *sum));
    for (const Block &block : blocks) turn<<<256, 256>>>(block.words, block.count, sum);
    CHECK(cudaMemcpy(&digest, sum, sizeof digest, cudaMemcpyDeviceToHost));
    printf("turn %d of %zu blocks: %016llx\n", number, blocks.size(), digest);
    fflush(stdout);
  }
  return 0;
}
