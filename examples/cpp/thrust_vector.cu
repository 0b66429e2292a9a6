// Thrust vectors in memory of a cachalot allocator: sorted and summed on a stream of the program's. Needs nvcc and a
// GPU.
//
//   thrust_vector [elements]
#include <cachalot.hpp>

#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/host_vector.h>
#include <thrust/mr/allocator.h>
#include <thrust/mr/memory_resource.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include <cstdio>
#include <cstdlib>

using pointer = thrust::cuda::pointer<void>;
using resource = cachalot::basic_resource<thrust::mr::memory_resource<pointer>, pointer>;
template <class T>
using vector = thrust::device_vector<T, thrust::mr::allocator<T, resource>>;

// The scratch memory of Thrust's algorithms, from the same allocator.
struct scratch {
  using value_type = char;

  const cachalot::allocator* allocator;
  cudaStream_t stream;

  char* allocate(std::ptrdiff_t bytes) { return static_cast<char*>(allocator->malloc(bytes, stream)); }
  void deallocate(char* data, std::size_t) { allocator->free(data); }
};

int main(int argc, char** argv) {
  const std::size_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1 << 20;
  cudaStream_t stream;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) {
    std::fprintf(stderr, "no stream\n");
    return 1;
  }
  cachalot::allocator allocator;
  {
    resource memory(allocator, 0, stream);
    scratch temporary{&allocator, stream};
    const auto policy = thrust::cuda::par_nosync(temporary).on(stream);
    for (int round = 0; round < 3; ++round) {
      // Elements are made on the default stream, which comes first here: the vector waits for it.
      vector<int> numbers(count, thrust::mr::allocator<int, resource>(&memory));
      cudaStreamSynchronize(nullptr);
      thrust::sequence(policy, numbers.begin(), numbers.end());
      thrust::sort(policy, numbers.begin(), numbers.end(), thrust::greater<int>());
      const long long sum = thrust::reduce(policy, numbers.begin(), numbers.end(), 0LL, thrust::plus<long long>());
      cudaStreamSynchronize(stream);
      const long long expected = static_cast<long long>(count) * (static_cast<long long>(count) - 1) / 2;
      if (sum != expected || numbers.front() != static_cast<int>(count) - 1 || numbers.back() != 0) {
        std::fprintf(stderr, "the sum is %lld and not %lld\n", sum, expected);
        return 1;
      }
    }
  }
  const cachalot_statistics statistics = allocator.statistics();
  std::printf("thrust_vector: %zu elements sorted 3 times; %lld blocks, %llu calls for memory\n", count,
              static_cast<long long>(statistics.allocations.allocated),
              static_cast<unsigned long long>(statistics.device_allocs));
  allocator.stream_destroyed(0, stream);
  cudaStreamDestroy(stream);
  allocator.destroy();
  return statistics.allocations.current == 0 ? 0 : 1;
}
