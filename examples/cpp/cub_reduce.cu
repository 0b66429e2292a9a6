// A program as CUDA's users write it, with a kernel and CUB, in memory of cachalot: typed buffers, CUB's scratch memory
// from the allocator that replaces CUB's own, and the resource for libraries with `cuda::mr`. Needs nvcc and a GPU.
//
//   cub_reduce [elements]
#include <cachalot_cub.hpp>
#include <cachalot_cuda_mr.hpp>

#include <cub/device/device_reduce.cuh>

#include <cstdio>
#include <cstdlib>

#define CUDA(call)                                                                                    \
  do {                                                                                                \
    const cudaError_t error_ = (call);                                                                \
    if (error_ != cudaSuccess) {                                                                      \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
      std::exit(1);                                                                                   \
    }                                                                                                 \
  } while (false)

__global__ void fill(int* data, int count) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) {
    data[index] = index % 100;
  }
}

// Sums on a stream. The scratch memory is free again in the order of the stream, before the sum is done.
static void sum(cachalot::CachingDeviceAllocator& allocator, const int* data, long long* out, int count,
                cudaStream_t stream) {
  void* scratch = nullptr;
  std::size_t bytes = 0;
  CUDA(cub::DeviceReduce::Sum(nullptr, bytes, data, out, count, stream));
  CUDA(allocator.DeviceAllocate(&scratch, bytes, stream));
  CUDA(cub::DeviceReduce::Sum(scratch, bytes, data, out, count, stream));
  CUDA(allocator.DeviceFree(scratch));
}

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 1 << 20;
  long long expected = 0, found = 0;
  for (int index = 0; index < count; ++index) {
    expected += index % 100;
  }
  cudaStream_t stream, other;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  cachalot::CachingDeviceAllocator allocator;
  cachalot::device_resource memory(allocator.get());
  for (int round = 0; round < 3; ++round) {
    cachalot::buffer<int> data(allocator.get(), count, stream);
    // What a library with `cuda::mr` does: allocates on one stream, and frees after the work of another.
    auto* const out = static_cast<long long*>(memory.allocate(cuda::stream_ref(stream), sizeof(long long)));
    fill<<<(count + 255) / 256, 256, 0, stream>>>(data.data(), count);
    CUDA(cudaGetLastError());
    sum(allocator, data.data(), out, count, stream);
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpyAsync(&found, out, sizeof(found), cudaMemcpyDeviceToHost, other));
    memory.deallocate(cuda::stream_ref(other), out, sizeof(long long));
    CUDA(cudaStreamSynchronize(other));
    if (found != expected) {
      std::fprintf(stderr, "the sum is %lld and not %lld\n", found, expected);
      return 1;
    }
  }
  const cachalot_statistics statistics = allocator.get().statistics();
  std::printf("cub_reduce: %d elements summed 3 times; %lld blocks, %llu calls for memory\n", count,
              static_cast<long long>(statistics.allocations.allocated),
              static_cast<unsigned long long>(statistics.device_allocs));
  allocator.get().stream_destroyed(0, stream);
  allocator.get().stream_destroyed(0, other);
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaStreamDestroy(other));
  CUDA(allocator.FreeAllCached());
  return allocator.get().statistics().reserved_bytes.current == 0 ? 0 : 1;
}
