/*
 * Adds two vectors: three blocks of a cachalot allocator, one stream, one kernel.
 *
 *   vector_add [elements]
 */
#include "host.h"

int main(int argc, char **argv) {
  const size_t count = argc > 1 ? (size_t)strtoull(argv[1], NULL, 10) : (size_t)1 << 20;
  const size_t bytes = count * sizeof(float);
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_statistics statistics = CACHALOT_STATISTICS_INIT;
  cachalot_allocator *allocator = NULL;
  cachalot_kernel_arguments arguments;
  float *host = malloc(bytes);
  void *left, *right, *sum;
  CUmodule module;
  CUstream stream;
  size_t index;
  int round;

  EXPECT(host != NULL && count > 0);
  enter_device(0);
  module = load_kernels();
  stream = new_stream();
  CACHALOT(cachalot_create(&options, &allocator));

  for (round = 0; round < 3; ++round) {
    CACHALOT(cachalot_malloc(allocator, 0, bytes, stream, &left));
    CACHALOT(cachalot_malloc(allocator, 0, bytes, stream, &right));
    CACHALOT(cachalot_malloc(allocator, 0, bytes, stream, &sum));
    for (index = 0; index < count; ++index) {
      host[index] = (float)(index % 1000 + (size_t)round);
    }
    CUDA(cuMemcpyHtoDAsync(address(left), host, bytes, stream));
    CUDA(cuStreamSynchronize(stream));
    for (index = 0; index < count; ++index) {
      host[index] = 1.0f;
    }
    CUDA(cuMemcpyHtoDAsync(address(right), host, bytes, stream));
    cachalot_kernel_add(&arguments, address(sum), address(left), address(right), count);
    CUDA(cachalot_kernel_launch(kernel(module, CACHALOT_KERNEL_ADD), stream, &arguments));
    /* The kernel is queued, so its inputs may be freed: whoever gets them next on this stream comes after it. */
    CACHALOT(cachalot_free_sized(allocator, left, bytes));
    CACHALOT(cachalot_free_sized(allocator, right, bytes));
    CUDA(cuMemcpyDtoHAsync(host, address(sum), bytes, stream));
    CACHALOT(cachalot_free(allocator, sum));
    CUDA(cuStreamSynchronize(stream));
    for (index = 0; index < count; ++index) {
      EXPECT(host[index] == (float)(index % 1000 + (size_t)round) + 1.0f);
    }
  }

  CACHALOT(cachalot_get_statistics(allocator, 0, &statistics));
  printf("vector_add: %zu elements, 3 rounds right; %llu bytes at most in use, %llu calls for memory\n", count,
         (unsigned long long)statistics.allocated_bytes.peak, (unsigned long long)statistics.device_allocs);
  /* The second and third round took their blocks from the cache. */
  EXPECT(statistics.device_allocs <= 3 && statistics.allocations.allocated == 9 && statistics.allocations.current == 0);

  end_stream(allocator, 0, stream);
  CACHALOT(cachalot_destroy(allocator));
  CUDA(cuModuleUnload(module));
  leave_device(0);
  free(host);
  return 0;
}
