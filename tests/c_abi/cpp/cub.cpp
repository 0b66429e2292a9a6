// cachalot_cub.hpp behaves as cub::CachingDeviceAllocator does.
#include "runtime.hpp"

#include <cachalot_cub.hpp>

#include <type_traits>

namespace {

using cachalot::CachingDeviceAllocator;

// CUB's own constructors.
static_assert(std::is_constructible_v<CachingDeviceAllocator>);
static_assert(std::is_constructible_v<CachingDeviceAllocator, bool, bool>);
static_assert(std::is_constructible_v<CachingDeviceAllocator, unsigned, unsigned, unsigned, std::size_t, bool>);

cachalot::options simulated() {
  cachalot::options two;
  two.flags = CACHALOT_SIMULATED;
  two.devices = {3, 1};
  two.simulated_bytes = 1 << 30;
  return two;
}

void requests() {
  CachingDeviceAllocator allocator(simulated());
  void *first = nullptr, *second = nullptr;
  current_device = 1;
  EXPECT(allocator.DeviceAllocate(&first, 1000) == cudaSuccess && first != nullptr);
  // The runtime's device 1 is the second one of the options.
  EXPECT(allocator.get().block_at(first).device == 1);
  EXPECT(allocator.DeviceAllocate(3, &second, 0) == cudaSuccess && second != nullptr);
  EXPECT(allocator.get().block_at(second).device == 0);
  EXPECT(allocator.DeviceFree(3, second) == cudaSuccess && allocator.DeviceFree(first) == cudaSuccess);
  void* again = nullptr;
  EXPECT(allocator.DeviceAllocate(&again, 1000) == cudaSuccess && again == first);
  EXPECT(allocator.DeviceFree(again) == cudaSuccess && allocator.DeviceFree(nullptr) == cudaSuccess);
  EXPECT(allocator.get().statistics(1).reserved_bytes.current > 0);
  EXPECT(allocator.FreeAllCached() == cudaSuccess && allocator.get().statistics(1).reserved_bytes.current == 0);
}

void failures() {
  CachingDeviceAllocator allocator(simulated());
  void* data = &allocator;
  EXPECT(allocator.DeviceAllocate(0, &data, 1) == cudaErrorInvalidDevice && data == nullptr);
  EXPECT(allocator.DeviceAllocate(1, &data, 2u << 30) == cudaErrorMemoryAllocation && data == nullptr);
  EXPECT(allocator.DeviceFree(1, &data) == cudaErrorInvalidValue);
  answer = cudaErrorInitializationError;
  EXPECT(allocator.DeviceAllocate(&data, 1) == cudaErrorInitializationError);
  answer = cudaSuccess;
  cachalot::options wrong = simulated();
  wrong.config = "nonsense:1";
  CachingDeviceAllocator never(wrong);
  EXPECT(never.DeviceAllocate(1, &data, 1) == cudaErrorInvalidValue);
}

// A global allocator that was never used touches no driver: here is none.
void unused() {
  static CachingDeviceAllocator global;
  void* data = nullptr;
  EXPECT(global.FreeAllCached() == cudaSuccess);
  EXPECT(global.DeviceAllocate(&data, 1) == cudaErrorInsufficientDriver && data == nullptr);
  // A first request that failed is tried again by the next.
  EXPECT(global.DeviceAllocate(0, &data, 1) == cudaErrorInsufficientDriver && global.FreeAllCached() == cudaSuccess);
}

void limits() {
  CachingDeviceAllocator allocator(simulated());
  const auto reserved = [&] { return allocator.get().statistics(0).reserved_bytes.current; };
  void *large = nullptr, *small = nullptr;
  EXPECT(allocator.DeviceAllocate(3, &large, 64 << 20) == cudaSuccess);
  EXPECT(allocator.DeviceAllocate(3, &small, 32 << 20) == cudaSuccess);
  // A new limit changes nothing at once, as CUB has it.
  EXPECT(allocator.SetMaxCachedBytes(40 << 20) == cudaSuccess && reserved() == 96 << 20);
  EXPECT(allocator.DeviceFree(3, small) == cudaSuccess && reserved() == 96 << 20);
  EXPECT(allocator.DeviceFree(3, large) == cudaSuccess && reserved() == 32 << 20);
  // A failure behind the free is none of the free: there is no device 0 to keep within the limit.
  static int reported = 0;
  cachalot::set_failure_handler([](const cachalot::failure&) noexcept { ++reported; });
  EXPECT(allocator.DeviceAllocate(3, &small, 1000) == cudaSuccess);
  EXPECT(allocator.DeviceFree(0, small) == cudaSuccess && reported == 1);
  EXPECT(allocator.get().statistics(0).allocations.current == 0);
}

}  // namespace

int main() {
  requests();
  failures();
  unused();
  limits();
  return 0;
}
