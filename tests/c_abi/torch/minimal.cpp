/*
 * The library of torch_minimal.cpp, as PyTorch would use it.
 *
 *   minimal LIBRARY
 */
#include "torch.hpp"

int main(int, char **argv) {
  const Driver driver;
  driver.use(0);
  void *library = dlopen(argv[1], RTLD_NOW);
  CHECK(library != nullptr);
  const std::function<void *(size_t, int, cudaStream_t)> alloc =
      function<void *(size_t, int, cudaStream_t)>(library, "my_malloc");
  const std::function<void(void *, size_t, int, cudaStream_t)> free =
      function<void(void *, size_t, int, cudaStream_t)>(library, "my_free");
  const cudaStream_t stream = driver.stream();
  const uint64_t contexts = driver.calls("cuDevicePrimaryCtxRetain");
  void *first = alloc(1000, 0, stream), *second = alloc(5 << 20, 0, stream);
  driver.use_block(first, 1000, stream);
  driver.use_block(second, 5 << 20, stream);
  CHECK(first != second && alloc(0, 0, stream) == nullptr);
  CHECK(driver.calls("cuDevicePrimaryCtxRetain") == contexts + 1);
  free(first, 1000, 0, stream);
  CHECK(alloc(1000, 0, stream) == first);
  free(nullptr, 0, 0, stream);
  try {
    alloc(size_t{1} << 45, 0, stream);
    CHECK(!"there is not so much memory");
  } catch (const std::exception &error) {
    CHECK(std::strstr(error.what(), "Tried to allocate") != nullptr);
  }
  return failures != 0;
}
