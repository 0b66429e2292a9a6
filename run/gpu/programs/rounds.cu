// Requests memory in every way of the CUDA runtime, has kernels write through each block and check each block before the
// free, and prints a sum of all contents. The output is the same in every run.
//
// usage: rounds [ROUNDS]
#include "check.h"

#include <cuda_runtime.h>

#include <thread>
#include <vector>

namespace {

constexpr int STREAMS = 4;
constexpr int HELD = 48;

__global__ void write(uint32_t *words, size_t count, uint32_t seed) {
  for (size_t at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += size_t(gridDim.x) * blockDim.x)
    words[at] = seed * 2654435761u + uint32_t(at);
}

__global__ void check(const uint32_t *words, size_t count, uint32_t seed, unsigned long long *wrong, unsigned long long *sum) {
  unsigned long long mine = 0;
  for (size_t at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += size_t(gridDim.x) * blockDim.x) {
    if (words[at] != seed * 2654435761u + uint32_t(at)) atomicAdd(wrong, 1ULL);
    mine += words[at];
  }
  atomicAdd(sum, mine);
}

enum Way { PLAIN, PITCH, STREAM_ORDERED, MANAGED, WAYS };

struct Block {
  uint32_t *words;
  size_t count;
  uint32_t seed;
  Way way;
  int stream;
};

void work(int rounds, uint64_t seed, unsigned long long *wrong, unsigned long long *sum) {
  cudaStream_t streams[STREAMS];
  for (int i = 0; i < STREAMS; i++)
    CHECK(i % 2 ? cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking) : cudaStreamCreate(&streams[i]));
  std::vector<Block> held;
  uint64_t state = seed;
  auto drop = [&](size_t at) {
    Block block = held[at];
    check<<<64, 256, 0, streams[block.stream]>>>(block.words, block.count, block.seed, wrong, sum);
    CHECK(cudaGetLastError());
    // The free comes while the kernel may still run: the driver's free waits, and a served free defers the reuse.
    if (block.way == STREAM_ORDERED)
      CHECK(cudaFreeAsync(block.words, streams[block.stream]));
    else
      CHECK(cudaFree(block.words));
    held[at] = held.back();
    held.pop_back();
  };
  for (int round = 0; round < rounds; round++) {
    size_t bytes = size_t(4) << (next_number(&state) % 23);
    bytes += 4 * (next_number(&state) % (bytes / 4));
    Block block{nullptr, bytes / 4, uint32_t(next_number(&state)), Way(next_number(&state) % WAYS), int(next_number(&state) % STREAMS)};
    // Managed memory is slow everywhere: few blocks suffice.
    if (block.way == MANAGED && round % 16) block.way = PLAIN;
    size_t pitch = 0;
    switch (block.way) {
    case PITCH: CHECK(cudaMallocPitch(reinterpret_cast<void **>(&block.words), &pitch, bytes, 3)); break;
    case STREAM_ORDERED: CHECK(cudaMallocAsync(reinterpret_cast<void **>(&block.words), bytes, streams[block.stream])); break;
    case MANAGED: CHECK(cudaMallocManaged(reinterpret_cast<void **>(&block.words), bytes)); break;
    default: CHECK(cudaMalloc(reinterpret_cast<void **>(&block.words), bytes));
    }
    EXPECT(reinterpret_cast<uintptr_t>(block.words) % 256 == 0);
    EXPECT(block.way != PITCH || (pitch >= bytes && pitch % 32 == 0));
    write<<<64, 256, 0, streams[block.stream]>>>(block.words, block.count, block.seed);
    CHECK(cudaGetLastError());
    held.push_back(block);
    if (held.size() > HELD) drop(next_number(&state) % held.size());
  }
  while (!held.empty()) drop(held.size() - 1);
  CHECK(cudaDeviceSynchronize());
  for (cudaStream_t stream : streams) CHECK(cudaStreamDestroy(stream));
}

} // namespace

int main(int argc, char **argv) {
  int rounds = argc > 1 ? atoi(argv[1]) : 4000;
  unsigned long long *figures, found[2];
  CHECK(cudaMalloc(reinterpret_cast<void **>(&figures), sizeof found));
  CHECK(cudaMemset(figures, 0, sizeof found));
  work(rounds, 1, &figures[0], &figures[1]);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++) threads.emplace_back(work, rounds / 4, 2 + i, &figures[0], &figures[1]);
  for (std::thread &thread : threads) thread.join();
  CHECK(cudaMemcpy(found, figures, sizeof found, cudaMemcpyDeviceToHost));
  EXPECT(found[0] == 0);
  EXPECT(cudaFree(figures) == cudaSuccess);
  EXPECT(cudaFree(figures) == cudaErrorInvalidValue);
  cudaGetLastError();
  printf("rounds %d sum %llx\n", rounds, found[1]);
  return 0;
}
