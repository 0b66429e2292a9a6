/*
 * The reserved bytes of each private pool, a part of PyTorch's statistics since 2.13.
 *
 * The library counts for each stream of a pool. A reading adds these counts up, so what PyTorch shows now is exact, and
 * the peaks and the sums are those of the readings. Programs without private pools read nothing.
 */
#pragma once

#include "library.hpp"

#include <array>
#include <atomic>
#include <map>
#include <mutex>

#if CACHALOT_TORCH >= 213

namespace cachalot_torch {

class PrivateReserved {
  /* All blocks, small ones, large ones: in the order of StatArray. */
  using Bytes = std::array<int64_t, 3>;
  using Stats = std::map<MempoolId_t, c10::CachingDeviceAllocator::StatArray>;

  std::mutex mutex;
  std::map<DeviceIndex, Stats> devices;
  std::atomic<bool> any{false};

  static std::map<MempoolId_t, Bytes> count(DeviceIndex device) {
    std::map<MempoolId_t, Bytes> counted;
    const auto visit = [](void *userdata, cachalot_pool pool, uint64_t small_bytes, uint64_t large_bytes) {
      const auto small = static_cast<int64_t>(small_bytes), large = static_cast<int64_t>(large_bytes);
      auto &pools = *static_cast<std::map<MempoolId_t, Bytes> *>(userdata);
      pools[MempoolId_t{pool.first, pool.second}] = {small + large, small, large};
      return 0;
    };
    require(cachalot_torch_pools(device, visit, &counted));
    return counted;
  }

  static void move_to(c10::CachingDeviceAllocator::Stat &stat, int64_t bytes) {
    const int64_t more = bytes - stat.current;
    if (more >= 0) {
      stat.increase(static_cast<size_t>(more));
    } else {
      stat.decrease(static_cast<size_t>(-more));
    }
  }

  template <typename Change>
  void for_each(DeviceIndex device, const Change &change) {
    const std::lock_guard<std::mutex> lock(mutex);
    for (auto &[pool, stats] : devices[device]) {
      for (auto &stat : stats) {
        change(stat);
      }
    }
  }

 public:
  /* Reports a private pool: readings look at the pools from now on. */
  void expect() { any.store(true, std::memory_order_relaxed); }

  void read(DeviceIndex device, c10::CachingDeviceAllocator::DeviceStats &into) {
    if (!any.load(std::memory_order_relaxed)) {
      return;
    }
    std::map<MempoolId_t, Bytes> now = count(device);
    const std::lock_guard<std::mutex> lock(mutex);
    Stats &pools = devices[device];
    for (const auto &[pool, bytes] : now) {
      pools.try_emplace(pool);
    }
    for (auto &[pool, stats] : pools) {
      const Bytes &bytes = now[pool]; /* 0 for a pool that has gone */
      for (size_t kind = 0; kind < bytes.size(); ++kind) {
        move_to(stats[kind], bytes[kind]);
      }
      into.reserved_bytes_by_private_pools[pool] = stats;
    }
  }

  void reset_peaks(DeviceIndex device) {
    for_each(device, [](auto &stat) { stat.reset_peak(); });
  }
  void reset_accumulated(DeviceIndex device) {
    for_each(device, [](auto &stat) { stat.reset_accumulated(); });
  }
};

}  // namespace cachalot_torch

#endif
