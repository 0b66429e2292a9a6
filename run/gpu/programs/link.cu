// The rate of the link between pinned memory of the host and the GPU: `to the GPU;GiB/s` and `to the host;GiB/s`, the best of rounds.
#include "check.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>

int main() {
  size_t bytes = size_t(2) << 30;
  void *host, *device;
  CHECK(cudaMallocHost(&host, bytes));
  CHECK(cudaMalloc(&device, bytes));
  for (auto kind : {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost}) {
    double best = 1e9;
    for (int round = 0; round < 6; round++) {
      auto begin = std::chrono::steady_clock::now();
      CHECK(kind == cudaMemcpyHostToDevice ? cudaMemcpy(device, host, bytes, kind) : cudaMemcpy(host, device, bytes, kind));
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    printf("to the %s;%.2f\n", kind == cudaMemcpyHostToDevice ? "GPU" : "host", 2.0 / best);
  }
  return 0;
}
