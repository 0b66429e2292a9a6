// Thrust vectors and algorithms in memory of a cachalot allocator, on the device system that a
// macro names.
//
// nvcc compiles Thrust's algorithms for the GPU. With THRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP
// a C++ compiler makes host code of them, which runs on the emulated driver if the host may use
// device memory: CACHALOT_EMU_HOST_ACCESS=1. Host code does not wait for streams, so the program
// does before each algorithm.
#include <cachalot.hpp>

#include <cuda_runtime_api.h>
#include <thrust/device_vector.h>
#include <thrust/functional.h>
#include <thrust/host_vector.h>
#include <thrust/mr/allocator.h>
#include <thrust/mr/memory_resource.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/transform.h>

#include <cstdio>
#include <cstdlib>

// What the chosen device system calls a pointer.
using pointer = thrust::pointer<void, thrust::device_system_tag>;
using resource = cachalot::basic_resource<thrust::mr::memory_resource<pointer>, pointer>;
template <class T>
using vector = thrust::device_vector<T, thrust::mr::allocator<T, resource>>;

#define CHECK(call)                                                                                  \
  do {                                                                                               \
    const cudaError_t code_ = (call);                                                                \
    if (code_ != cudaSuccess) {                                                                      \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(code_)); \
      std::exit(1);                                                                                  \
    }                                                                                                \
  } while (0)

int main(int argc, char** argv) {
  const std::size_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1 << 16;
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cachalot::allocator allocator;
  {
    resource memory(allocator, 0, stream);
    const thrust::mr::allocator<int, resource> of_ints(&memory);
    for (int round = 0; round < 3; ++round) {
      vector<int> numbers(count, of_ints), squares(count, of_ints);
      thrust::sequence(numbers.begin(), numbers.end());
      thrust::sort(numbers.begin(), numbers.end(), thrust::greater<int>());
      thrust::transform(numbers.begin(), numbers.end(), numbers.begin(), squares.begin(), thrust::multiplies<int>());

      // Copied on the stream, after what Thrust did; Thrust goes on after the copy.
      CHECK(cudaDeviceSynchronize());
      vector<int> copy(count, of_ints);
      CHECK(cudaMemcpyAsync(thrust::raw_pointer_cast(copy.data()), thrust::raw_pointer_cast(numbers.data()),
                            count * sizeof(int), cudaMemcpyDeviceToDevice, stream));
      CHECK(cudaStreamSynchronize(stream));

      const long long sum = thrust::reduce(copy.begin(), copy.end(), 0LL, thrust::plus<long long>());
      const long long expected = static_cast<long long>(count) * (static_cast<long long>(count) - 1) / 2;
      const thrust::host_vector<int> ends(copy.end() - 2, copy.end());
      if (sum != expected || copy.front() != static_cast<int>(count) - 1 || ends[0] != 1 || ends[1] != 0 ||
          static_cast<int>(squares[count - 3]) != 4) {
        std::fprintf(stderr, "the sum is %lld and not %lld\n", sum, expected);
        return 1;
      }
    }
  }
  const cachalot_statistics statistics = allocator.statistics();
  std::printf("thrust_system: %zu elements sorted 3 times; %lld blocks, %llu calls for memory\n", count,
              static_cast<long long>(statistics.allocations.allocated),
              static_cast<unsigned long long>(statistics.device_allocs));
  allocator.stream_destroyed(0, stream);
  CHECK(cudaStreamDestroy(stream));
  allocator.destroy();
  return statistics.allocations.current == 0 ? 0 : 1;
}
