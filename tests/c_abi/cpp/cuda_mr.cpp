// cachalot_cuda_mr.hpp satisfies the concepts of CCCL, before and after the names changed in 3.1.
#include <cachalot_cuda_mr.hpp>

#include "runtime.hpp"

#include <cstring>
#include <type_traits>

using cachalot::device_resource;

#if CCCL_VERSION >= 3001000
static_assert(cuda::mr::synchronous_resource_with<device_resource, cuda::mr::device_accessible>);
static_assert(cuda::mr::resource_with<device_resource, cuda::mr::device_accessible>);
static_assert(!cuda::mr::resource_with<device_resource, cuda::mr::host_accessible>);
#else
static_assert(cuda::mr::resource_with<device_resource, cuda::mr::device_accessible>);
static_assert(cuda::mr::async_resource_with<device_resource, cuda::mr::device_accessible>);
static_assert(!cuda::mr::resource_with<device_resource, cuda::mr::host_accessible>);
#endif
static_assert(std::is_nothrow_copy_constructible_v<device_resource>);

namespace {

int failures = 0;

cudaStream_t stream(std::uintptr_t number) {
  return reinterpret_cast<cudaStream_t>(number);
}

void ordered(const cachalot::allocator& allocator, device_resource memory) {
  const cuda::stream_ref first(stream(16)), second(stream(17));
#if CCCL_VERSION >= 3001000
  cuda::mr::resource_ref<cuda::mr::device_accessible> any(memory);
  void* const data = any.allocate(first, 1000, 256);
#else
  cuda::mr::async_resource_ref<cuda::mr::device_accessible> any(memory);
  void* const data = any.allocate_async(1000, 256, first);
#endif
  EXPECT(allocator.block_at(data).requested_bytes == 1000 && waits == 0);
  // Freed after the work of another stream, the block stays pending.
#if CCCL_VERSION >= 3001000
  any.deallocate(second, data, 1000, 256);
#else
  any.deallocate_async(data, 1000, 256, second);
#endif
  EXPECT(allocator.statistics().allocations.current == 0 && allocator.statistics().active_blocks.current == 1);
  allocator.empty_cache();
  EXPECT(allocator.statistics().active_blocks.current == 0);
  // Freed after the work of its own stream, it is free at once.
  memory.deallocate(first, memory.allocate(first, 1000), 1000);
  memory.deallocate_async(memory.allocate_async(1000, first), 1000, first);
  EXPECT(allocator.statistics().active_blocks.current == 0 && waits == 0);
}

void synchronous(const cachalot::allocator& allocator, device_resource memory) {
  void* data = memory.allocate_sync(1000);
  EXPECT(waits == 1 && allocator.statistics().allocations.current == 1);
  memory.deallocate_sync(data, 1000);
  data = memory.allocate(1000);
  EXPECT(waits == 2);
  memory.deallocate(data, 1000);
  answer = cudaErrorLaunchFailure;
  bool thrown = false;
  try {
    memory.allocate_sync(1000);
  } catch (const cachalot::error& error) {
    // The text names the cause, which the runtime does not know.
    thrown = error.status() == CACHALOT_ERROR_UNSUPPORTED && error.driver_code() == cudaErrorLaunchFailure &&
             std::strstr(error.what(), "the device is simulated") != nullptr &&
             std::strstr(error.what(), "an error of the runtime") != nullptr;
  }
  answer = cudaSuccess;
  EXPECT(thrown && allocator.statistics().allocations.current == 0);
  thrown = false;
  try {
    memory.allocate_sync(1000, 512);
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  EXPECT(thrown);
}

void equality(const cachalot::allocator& allocator, const cachalot::allocator& another) {
  const device_resource memory(allocator);
  EXPECT(memory == device_resource(allocator, 0, stream(16)) && memory != device_resource(another));
  EXPECT(memory != device_resource(allocator, 1));
}

}  // namespace

int main() {
  cachalot::options simulated;
  simulated.flags = CACHALOT_SIMULATED;
  const cachalot::allocator allocator(simulated), another(simulated);
  device_resource memory(allocator);
  ordered(allocator, memory);
  synchronous(allocator, memory);
  equality(allocator, another);
  // What cannot be freed is reported, once.
  cachalot::set_failure_handler(
      [](const cachalot::failure& failure) noexcept { failures += failure.status == CACHALOT_ERROR_INVALID_POINTER; });
  memory.deallocate(cuda::stream_ref(stream(16)), &memory, 1);
  memory.deallocate_sync(&memory, 1);
  EXPECT(failures == 2);
  return 0;
}
