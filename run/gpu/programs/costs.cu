// The costs of memory for a program: a free while a kernel runs, pairs of request and free, a launch, and a call of the driver.
// Prints one figure a line, `name;nanoseconds`, the median of rounds.
#include "check.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace {

__global__ void spin(unsigned long long nanoseconds) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - begin < nanoseconds);
}

__global__ void nothing() {}

double nanoseconds(const std::function<void()> &work) {
  auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
}

void report(const char *name, int rounds, int calls, const std::function<void()> &work) {
  std::vector<double> figures;
  work();
  for (int round = 0; round < rounds; round++) figures.push_back(nanoseconds(work) / calls);
  std::sort(figures.begin(), figures.end());
  printf("%s;%.1f\n", name, figures[rounds / 2]);
}

} // namespace

int main() {
  void *block = nullptr;
  CHECK(cudaFree(nullptr));
  std::vector<double> frees;
  for (int round = 0; round < 15; round++) {
    CHECK(cudaMalloc(&block, 1 << 20));
    spin<<<1, 1>>>(80000000ULL);
    CHECK(cudaGetLastError());
    frees.push_back(nanoseconds([&] { CHECK(cudaFree(block)); }));
    CHECK(cudaDeviceSynchronize());
  }
  std::sort(frees.begin(), frees.end());
  printf("free under a kernel of 80 ms;%.1f\n", frees[frees.size() / 2]);
  printf("free under a kernel of 80 ms, the worst;%.1f\n", frees.back());
  for (size_t bytes : {size_t(512), size_t(64) << 10, size_t(3) << 20, size_t(100) << 20}) {
    char name[64];
    snprintf(name, sizeof name, "cudaMalloc + cudaFree of %zu KiB", bytes >> 10);
    if (bytes < 1024) snprintf(name, sizeof name, "cudaMalloc + cudaFree of %zu B", bytes);
    report(name, 15, 200, [&] {
      for (int i = 0; i < 200; i++) {
        CHECK(cudaMalloc(&block, bytes));
        CHECK(cudaFree(block));
      }
    });
    snprintf(name, sizeof name, "with kernels, %zu KiB", bytes >> 10);
    if (bytes < 1024) snprintf(name, sizeof name, "with kernels, %zu B", bytes);
    report(name, 9, 100, [&] {
      for (int i = 0; i < 100; i++) {
        CHECK(cudaMalloc(&block, bytes));
        nothing<<<1, 1>>>();
        CHECK(cudaFree(block));
      }
      CHECK(cudaDeviceSynchronize());
    });
  }
  // A window of 64 blocks in random order, as programs with caches of their own never show.
  report("random window of 64 blocks", 9, 4096, [&] {
    void *window[64] = {};
    uint64_t state = 5;
    for (int i = 0; i < 4096; i++) {
      void *&place = window[next_number(&state) % 64];
      if (place) CHECK(cudaFree(place));
      CHECK(cudaMalloc(&place, 256 << (next_number(&state) % 16)));
    }
    for (void *place : window)
      if (place) CHECK(cudaFree(place));
  });
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  report("kernel launch", 31, 500, [&] {
    for (int i = 0; i < 500; i++) nothing<<<1, 1, 0, stream>>>();
    CHECK(cudaStreamSynchronize(stream));
  });
  CUcontext context;
  report("cuCtxGetCurrent", 31, 20000, [&] {
    for (int i = 0; i < 20000; i++) CHECK(cuCtxGetCurrent(&context));
  });
  // What the allocator asks before a call of the driver, because the program may have reset the device.
  unsigned long long id;
  report("cuCtxGetId", 31, 20000, [&] {
    for (int i = 0; i < 20000; i++) CHECK(cuCtxGetId(context, &id));
  });
  CHECK(cudaMalloc(&block, 1 << 20));
  // A call that may use memory, and does nothing: what is left is the way to the driver.
  report("a fill of 0 bytes", 31, 20000, [&] {
    for (int i = 0; i < 20000; i++) CHECK(cuMemsetD8Async((CUdeviceptr)block, 0, 0, nullptr));
  });
  report("cuMemGetAddressRange", 31, 20000, [&] {
    CUdeviceptr base;
    size_t bytes;
    for (int i = 0; i < 20000; i++) CHECK(cuMemGetAddressRange(&base, &bytes, (CUdeviceptr)block));
  });
  CHECK(cudaFree(block));
  return 0;
}
