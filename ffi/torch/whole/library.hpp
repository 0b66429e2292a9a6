/*
 * The library as C++ values: statuses as exceptions, segments and statistics as containers.
 */
#pragma once

#include "../failure.hpp"
#include "versions.hpp"

#include <array>
#include <string>
#include <unordered_map>
#include <vector>

namespace cachalot_torch {

/* The allocator's handle. The first call makes the allocator. */
inline cachalot_allocator *handle() {
  cachalot_allocator *allocator = nullptr;
  require(cachalot_torch_allocator(&allocator));
  return allocator;
}

inline int device_count() {
  int count = 0;
  require(cachalot_get_device_count(handle(), &count));
  return count;
}

inline cachalot_pool library_pool(const MempoolId_t &pool) {
  return {pool.first, pool.second};
}

/* The handle of a stream, from the library's number. */
inline cudaStream_t stream_handle(uint64_t stream_id) {
  return reinterpret_cast<cudaStream_t>(stream_id & ((uint64_t{1} << 48) - 1));
}

/* A segment that outlives the visit. */
struct Segment {
  cachalot_torch_segment head;
  std::vector<cachalot_torch_block> blocks;
};

/* The segments of every device, by address. */
inline std::vector<Segment> segments() {
  std::vector<Segment> found;
  const auto visit = [](void *userdata, const cachalot_torch_segment *segment) {
    auto &segments = *static_cast<std::vector<Segment> *>(userdata);
    segments.push_back({*segment, {segment->blocks, segment->blocks + segment->block_count}});
    return 0;
  };
  require(cachalot_torch_segments(visit, &found));
  return found;
}

/* The segments of one pool on one device. */
inline std::vector<Segment> segments_of(DeviceIndex device, const MempoolId_t &pool) {
  std::vector<Segment> found;
  for (Segment &segment : segments()) {
    if (segment.head.device == device && segment.head.pool.first == pool.first &&
        segment.head.pool.second == pool.second) {
      found.push_back(std::move(segment));
    }
  }
  return found;
}

/* The segment with the byte at an address. */
inline Segment segment_at(const void *address) {
  const auto *const at = static_cast<const char *>(address);
  for (Segment &segment : segments()) {
    const auto *const base = static_cast<const char *>(segment.head.base);
    if (base <= at && at < base + segment.head.bytes) {
      return std::move(segment);
    }
  }
  TORCH_CHECK(false, "no memory of the allocator is at ", address);
}

/* The statistics of a device by their names in torch.cuda.memory_stats(). */
using Named = std::unordered_map<std::string, int64_t>;

inline void read(const Named &named, const std::string &name, c10::CachingDeviceAllocator::Stat &stat) {
  const auto value = [&](const char *part) {
    const auto found = named.find(name + part);
    return found == named.end() ? 0 : found->second;
  };
  stat.current = value(".current");
  stat.peak = value(".peak");
  stat.allocated = value(".allocated");
  stat.freed = value(".freed");
}

inline void read(const Named &named, const std::string &name, c10::CachingDeviceAllocator::StatArray &stats) {
  const std::array<const char *, 3> kinds{".all", ".small_pool", ".large_pool"};
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    read(named, name + kinds[kind], stats[kind]);
  }
}

inline c10::CachingDeviceAllocator::DeviceStats device_stats(DeviceIndex device) {
  Named named;
  const auto visit = [](void *userdata, const char *key, int64_t value) {
    static_cast<Named *>(userdata)->emplace(key, value);
    return 0;
  };
  require(cachalot_visit_statistics(handle(), device, visit, &named));
  c10::CachingDeviceAllocator::DeviceStats stats;
  read(named, "allocation", stats.allocation);
  read(named, "segment", stats.segment);
  read(named, "active", stats.active);
  read(named, "inactive_split", stats.inactive_split);
  read(named, "allocated_bytes", stats.allocated_bytes);
  read(named, "reserved_bytes", stats.reserved_bytes);
  read(named, "active_bytes", stats.active_bytes);
  read(named, "inactive_split_bytes", stats.inactive_split_bytes);
  read(named, "requested_bytes", stats.requested_bytes);
  read(named, "oversize_allocations", stats.oversize_allocations);
  read(named, "oversize_segments", stats.oversize_segments);
  stats.num_alloc_retries = named["num_alloc_retries"];
  stats.num_ooms = named["num_ooms"];
  stats.num_sync_all_streams = named["num_sync_all_streams"];
  stats.num_device_alloc = named["num_device_alloc"];
  stats.num_device_free = named["num_device_free"];
#if CACHALOT_TORCH >= 212
  stats.num_oom_rejections = named["num_oom_rejections"];
#endif
  stats.max_split_size = named["max_split_size"];
  return stats;
}

}  // namespace cachalot_torch
