/*
 * Memory shared between processes, by the driver's handles of whole segments.
 *
 * A handle has the form that every version of PyTorch reads: the 64 bytes of the driver. So each side may run PyTorch's
 * own allocator.
 */
#pragma once

#include "library.hpp"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstring>
#include <memory>
#include <mutex>

namespace cachalot_torch {

inline interface::ShareableHandle share(void *address) {
  cachalot_block block = CACHALOT_BLOCK_INIT;
  require(cachalot_base_of(handle(), address, &block));
  cudaIpcMemHandle_t shared;
  const cudaError_t refused = cudaIpcGetMemHandle(&shared, block.segment_base);
  if (refused != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    TORCH_CHECK(false, "memory of expandable or stitched segments cannot be shared with another process (",
                cudaGetErrorString(refused), "): use expandable_segments:False under policy:caching");
  }
  const auto offset = static_cast<const char *>(address) - static_cast<const char *>(block.segment_base);
  return {offset, std::string(shared.reserved, sizeof shared.reserved)};
}

/* The segments of other processes that are open here. The driver opens each one at most once. */
class Opened {
  std::mutex mutex;
  std::unordered_map<std::string, std::weak_ptr<void>> segments;

  /* The driver's part of a handle. PyTorch's handles since 2.5 begin with a version and the kind of memory. */
  static cudaIpcMemHandle_t parse(const std::string &handle) {
    cudaIpcMemHandle_t shared;
    const size_t head = handle.size() - std::min(handle.size(), sizeof shared.reserved);
    TORCH_CHECK(handle.size() >= sizeof shared.reserved && (head == 0 || (head == 2 && handle[1] == 'c')),
                "memory of another process's expandable segments cannot be opened: use expandable_segments:False there");
    std::memcpy(shared.reserved, handle.data() + head, sizeof shared.reserved);
    return shared;
  }

 public:
  std::shared_ptr<void> open(const std::string &handle) {
    const std::lock_guard<std::mutex> lock(mutex);
    std::weak_ptr<void> &known = segments[handle];
    if (std::shared_ptr<void> segment = known.lock()) {
      return segment;
    }
    const cudaIpcMemHandle_t shared = parse(handle);
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    void *base = nullptr;
    C10_CUDA_CHECK(cudaIpcOpenMemHandle(&base, shared, cudaIpcMemLazyEnablePeerAccess));
    std::shared_ptr<void> segment(base, [this, device, handle](void *opened) {
      const std::lock_guard<std::mutex> locked(mutex);
      const auto entry = segments.find(handle);
      /* Another thread may have opened the segment again in the meantime. */
      if (entry != segments.end() && entry->second.expired()) {
        segments.erase(entry);
      }
      const c10::cuda::CUDAGuard guard(device);
      C10_CUDA_CHECK_WARN(cudaIpcCloseMemHandle(opened));
    });
    known = segment;
    return segment;
  }
};

}  // namespace cachalot_torch
