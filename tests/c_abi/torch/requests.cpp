/*
 * Requests as PyTorch makes them: several devices, any thread, sizes that are nothing, addresses that are nobody's. A
 * device that is not used gets no context.
 */
#include "torch.hpp"

#include <thread>
#include <vector>

enum { THREADS = 4, ROUNDS = 500 };

int main(int, char **argv) {
  Pluggable torch(argv[1]);
  torch.init(0);
  cachalot_allocator *handle = nullptr;
  CHECK(cachalot_torch_peek(&handle) == CACHALOT_OK && handle == nullptr);

  const Driver driver;
  driver.use(0);
  torch.init(2);
  CHECK(cachalot_torch_peek(&handle) == CACHALOT_OK && handle != nullptr);
  const uint64_t contexts = driver.calls("cuDevicePrimaryCtxRetain");
  const cudaStream_t stream = driver.stream();

  /* What costs nothing opens nothing. */
  CHECK(torch.allocate(0, 0, stream) == nullptr);
  torch.free(nullptr);
  torch.empty_cache();
  torch.set_memory_fraction(0.5, 1);
  CHECK(stat("reserved_bytes.all.current", 1) == 0);
  CHECK(driver.calls("cuDevicePrimaryCtxRetain") == contexts);

  void *block = torch.allocate(1000, 0, stream);
  driver.use_block(block, 1000, stream);
  CHECK(block != nullptr && stat("requested_bytes.all.current") == 1000 && stat("allocation.all.current") == 1);
  CHECK(driver.calls("cuDevicePrimaryCtxRetain") == contexts + 1);
  size_t bytes = 7;
  CHECK(torch.base_allocation(static_cast<char *>(block) + 100, &bytes) == block && bytes == 2 << 20);
  bytes = 7;
  CHECK(torch.base_allocation(&bytes, &bytes) == &bytes && bytes == 7);
  torch.free(block);
  CHECK(stat("allocation.all.current") == 0 && stat("reserved_bytes.all.current") == 2 << 20);
  torch.empty_cache();
  CHECK(stat("reserved_bytes.all.current") == 0);

  /* The second device, when it is used: with the limit that it was given before. */
  driver.use(1);
  const cudaStream_t second = driver.stream();
  const uint64_t before = driver.calls("cuDevicePrimaryCtxRetain");
  block = torch.allocate(5 << 20, 1, second);
  driver.use_block(block, 5 << 20, second);
  CHECK(driver.calls("cuDevicePrimaryCtxRetain") == before + 1);
  CHECK(stat("allocation.all.current", 1) == 1 && stat("allocation.all.current", 0) == 0);
  cachalot_device_info device = CACHALOT_DEVICE_INFO_INIT;
  NEEDED(cachalot_get_device_info(handle, 1, &device));
  CHECK(device.ordinal == 1 && device.limit_bytes == device.total_bytes / 2);
  torch.free(block);

  /* Threads, each with a stream and some blocks that the next one's stream uses too. */
  std::vector<cudaStream_t> streams;
  for (int index = 0; index < THREADS; ++index) {
    streams.push_back(driver.stream());
  }
  std::vector<std::thread> threads;
  for (int index = 0; index < THREADS; ++index) {
    threads.emplace_back([&, index] {
      driver.use(1);
      for (int round = 0; round < ROUNDS; ++round) {
        const size_t size = 512u << (round % 13);
        void *mine = torch.allocate(size, 1, streams[index]);
        driver.use_block(mine, size, streams[index]);
        torch.record_stream(mine, streams[(index + 1) % THREADS]);
        torch.free(mine);
      }
    });
  }
  for (std::thread &thread : threads) {
    thread.join();
  }
  torch.empty_cache();
  CHECK(stat("allocation.all.current", 1) == 0 && stat("reserved_bytes.all.current", 1) == 0);
  CHECK(stat("allocation.all.allocated", 1) == THREADS * ROUNDS + 1);

  /* Nobody's memory: told once, and not a crash. Another stream's use of it is not the allocator's affair. */
  int own = 0;
  torch.free(&own);
  torch.free(&own);
  torch.record_stream(&own, second);
  torch.record_stream(nullptr, second);

  /* There is no Python here whose frames could be told. */
  CHECK(cachalot_torch_record_stacks(1) == CACHALOT_ERROR_UNSUPPORTED);
  CHECK(cachalot_torch_record_stacks(0) == CACHALOT_OK);
  NEEDED(cachalot_check_invariants(handle));
  return failures != 0;
}
