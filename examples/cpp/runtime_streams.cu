// cachalot under a program of the CUDA runtime: cudaStream_t, <<<>>>, events, and a block that two
// streams use.
//
// The file is compiled by nvcc for a GPU. Without one it is compiled twice, see
// emulated-runtime/README.md.
#include <cachalot_host_kernels.h>

// y = a * x + y
__global__ void saxpy(std::size_t count, float a, const float* x, float* y) {
  for (std::size_t i = blockIdx.x * std::size_t(blockDim.x) + threadIdx.x; i < count; i += std::size_t(gridDim.x) * blockDim.x) {
    y[i] = a * x[i] + y[i];
  }
}
CACHALOT_HOST_KERNEL(saxpy);

// Adds all values to *total: the threads of a block through shared memory, the blocks with an
// atomic addition.
template <class T>
__global__ void sum(std::size_t count, const T* values, T* total) {
  __shared__ T partial[256];
  T mine = 0;
  for (std::size_t i = blockIdx.x * std::size_t(blockDim.x) + threadIdx.x; i < count; i += std::size_t(gridDim.x) * blockDim.x) {
    mine += values[i];
  }
  partial[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicAdd(total, partial[0]);
}
CACHALOT_HOST_KERNEL(sum<double>);
CACHALOT_HOST_KERNEL(sum<float>);

#if defined(__CUDACC__)

#include <cachalot.hpp>

#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                                        \
  do {                                                                                                     \
    const cudaError_t code_ = (call);                                                                      \
    if (code_ != cudaSuccess) {                                                                            \
      std::fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(code_),      \
                   cudaGetErrorString(code_));                                                             \
      std::exit(1);                                                                                        \
    }                                                                                                      \
  } while (0)

int main(int argc, char** argv) {
  const std::size_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1 << 20;
  const std::size_t bytes = count * sizeof(float);
  const unsigned threads = 256, blocks = 32;

  cudaStream_t work, check;
  cudaEvent_t begun, done;
  CHECK(cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithPriority(&check, cudaStreamNonBlocking, 0));
  CHECK(cudaEventCreate(&begun));
  CHECK(cudaEventCreate(&done));

  cachalot::allocator allocator;
  const std::vector<float> host(count, 1.0f);
  for (int round = 0; round < 10; ++round) {
    auto* x = static_cast<float*>(allocator.malloc(bytes, work));
    auto* y = static_cast<float*>(allocator.malloc(bytes, work));
    auto* total = static_cast<float*>(allocator.malloc(sizeof(float), work));
    CHECK(cudaMemcpyAsync(x, host.data(), bytes, cudaMemcpyHostToDevice, work));
    CHECK(cudaMemsetAsync(y, 0, bytes, work));
    CHECK(cudaMemsetAsync(total, 0, sizeof(float), work));
    CHECK(cudaEventRecord(begun, work));
    saxpy<<<blocks, threads, 0, work>>>(count, 2.0f, x, y);
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(done, work));

    // The other stream reads y when it is made. The blocks are freed at once: the allocator waits
    // for that stream's part of it.
    CHECK(cudaStreamWaitEvent(check, done, 0));
    sum<float><<<blocks, threads, 0, check>>>(count, y, total);
    CHECK(cudaGetLastError());
    allocator.record_stream(y, check);
    allocator.record_stream(total, check);
    float found = 0;
    CHECK(cudaMemcpyAsync(&found, total, sizeof found, cudaMemcpyDeviceToHost, check));
    for (void* block : {static_cast<void*>(x), static_cast<void*>(y), static_cast<void*>(total)}) {
      allocator.free(block);
    }
    CHECK(cudaStreamSynchronize(check));
    if (found != 2.0f * static_cast<float>(count)) {
      std::fprintf(stderr, "the sum is %f and not %f\n", found, 2.0 * static_cast<double>(count));
      return 1;
    }
  }
  float milliseconds = 0;
  CHECK(cudaEventElapsedTime(&milliseconds, begun, done));
  const cachalot_statistics statistics = allocator.statistics();
  std::printf("runtime_streams: %zu elements, 10 rounds, the last took %.3f ms; %lld blocks, %llu calls for memory\n", count,
              milliseconds, static_cast<long long>(statistics.allocations.allocated),
              static_cast<unsigned long long>(statistics.device_allocs));
  for (cudaStream_t stream : {work, check}) {
    allocator.stream_destroyed(0, stream);
    CHECK(cudaStreamDestroy(stream));
  }
  CHECK(cudaEventDestroy(begun));
  CHECK(cudaEventDestroy(done));
  allocator.destroy();
  return statistics.allocations.current == 0 ? 0 : 1;
}

#endif
