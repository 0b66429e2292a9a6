// Random work with pauses, for processes that share a GPU in turn: holds blocks, and in each round a kernel checks every word of every
// block and writes new words, some blocks are freed and others requested, and the program pauses. Prints a line a round: the milliseconds
// that the round has waited and worked.
//
// usage: shifts MIB SECONDS SEED
#include "check.h"

#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace {

struct Block {
  uint32_t *words;
  size_t count;
  uint32_t seed;
};

__global__ void write(uint32_t *words, size_t count, uint32_t seed) {
  for (size_t at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += size_t(gridDim.x) * blockDim.x)
    words[at] = seed * 2654435761u + uint32_t(at);
}

__global__ void turn(uint32_t *words, size_t count, uint32_t seed, uint32_t next, unsigned *wrong) {
  for (size_t at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += size_t(gridDim.x) * blockDim.x) {
    if (words[at] != seed * 2654435761u + uint32_t(at)) atomicAdd(wrong, 1u);
    words[at] = next * 2654435761u + uint32_t(at);
  }
}

} // namespace

int main(int argc, char **argv) {
  size_t most = size_t(argc > 1 ? atoll(argv[1]) : 256) << 20, held = 0;
  double seconds = argc > 2 ? atof(argv[2]) : 5;
  uint64_t state = argc > 3 ? strtoull(argv[3], nullptr, 10) : 1;
  auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  double end = now() + seconds, longest = 0;
  auto timed = [&](auto call) {
    double begin = now();
    call();
    longest = std::max(longest, now() - begin);
  };
  std::vector<Block> blocks;
  unsigned *wrong, found;
  CHECK(cudaMalloc(&wrong, sizeof *wrong));
  CHECK(cudaMemset(wrong, 0, sizeof *wrong));
  while (now() < end) {
    double begin = now();
    longest = 0;
    for (Block &block : blocks) {
      uint32_t next = uint32_t(next_number(&state));
      timed([&] { turn<<<256, 256>>>(block.words, block.count, block.seed, next, wrong); });
      block.seed = next;
    }
    for (size_t at = 0; at < blocks.size();) {
      if (next_number(&state) % 4 == 0) {
        held -= blocks[at].count * 4;
        timed([&] { CHECK(cudaFree(blocks[at].words)); });
        blocks[at] = blocks.back();
        blocks.pop_back();
      } else {
        at++;
      }
    }
    while (held < most / 2 || (held < most && next_number(&state) % 3)) {
      size_t bytes = size_t(4096) << next_number(&state) % 17;
      if (held + bytes > most) break;
      Block block{nullptr, bytes / 4, uint32_t(next_number(&state))};
      timed([&] { CHECK(cudaMalloc(&block.words, bytes)); });
      timed([&] { write<<<256, 256>>>(block.words, block.count, block.seed); });
      blocks.push_back(block);
      held += bytes;
    }
    timed([&] { CHECK(cudaMemcpy(&found, wrong, sizeof found, cudaMemcpyDeviceToHost)); });
    EXPECT(found == 0);
    printf("%.0f %.0f\n", (now() - begin) * 1000, longest * 1000);
    fflush(stdout);
    usleep(unsigned(next_number(&state) % 1000) * 1000);
  }
  return 0;
}
