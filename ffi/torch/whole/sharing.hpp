/*
 * Memory shared between processes: ordinary segments by the driver's handles, blocks of expandable and stitched
 * segments by the descriptors of their pages.
 *
 * The handle of an ordinary segment has the form that every version of PyTorch reads: the 64 bytes of the driver. So
 * each side may run PyTorch's own allocator. Pages need cachalot on both sides.
 */
#pragma once

#include "exported_pages.hpp"
#include "imported_pages.hpp"
#include "library.hpp"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstring>
#include <memory>
#include <mutex>

namespace cachalot_torch {

inline interface::ShareableHandle share(ExportedPages &pages, void *address) {
  const auto offset_from = [address](const void *base) {
    return static_cast<const char *>(address) - static_cast<const char *>(base);
  };
  cachalot_block block = CACHALOT_BLOCK_INIT;
  require(cachalot_get_block(handle(), address, &block));
  std::string exported = pages.share(handle(), block.base);
  if (!exported.empty()) {
    return {offset_from(block.base), std::move(exported)};
  }
  cudaIpcMemHandle_t shared;
  const cudaError_t refused = cudaIpcGetMemHandle(&shared, block.segment_base);
  if (refused != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    TORCH_CHECK(false, "the driver shares this segment with no other process (", cudaGetErrorString(refused), ")");
  }
  return {offset_from(block.segment_base), std::string(shared.reserved, sizeof shared.reserved)};
}

/* The memory of other processes that is open here, by handle. Each handle is open at most once. */
class Opened {
  std::mutex mutex;
  std::unordered_map<std::string, std::weak_ptr<void>> open_here;

  /* The driver's part of a handle. PyTorch's handles since 2.5 start with a version and the kind of memory. */
  static cudaIpcMemHandle_t parse(const std::string &handle) {
    cudaIpcMemHandle_t shared;
    const size_t head = handle.size() - std::min(handle.size(), sizeof shared.reserved);
    TORCH_CHECK(handle.size() >= sizeof shared.reserved && (head == 0 || (head == 2 && handle[1] == 'c')),
                "expandable segments of PyTorch's own allocator cannot be opened: use expandable_segments:False there");
    std::memcpy(shared.reserved, handle.data() + head, sizeof shared.reserved);
    return shared;
  }

  /* Forgets a handle, unless another thread has opened it again in the meantime. Under the lock. */
  void forget(const std::string &handle) {
    const auto entry = open_here.find(handle);
    if (entry != open_here.end() && entry->second.expired()) {
      open_here.erase(entry);
    }
  }

  std::shared_ptr<void> open_segment(const std::string &handle, DeviceIndex device) {
    const cudaIpcMemHandle_t shared = parse(handle);
    void *base = nullptr;
    C10_CUDA_CHECK(cudaIpcOpenMemHandle(&base, shared, cudaIpcMemLazyEnablePeerAccess));
    return {base, [this, device, handle](void *opened) {
              const std::lock_guard<std::mutex> lock(mutex);
              forget(handle);
              const c10::cuda::CUDAGuard guard(device);
              C10_CUDA_CHECK_WARN(cudaIpcCloseMemHandle(opened));
            }};
  }

  std::shared_ptr<void> open_pages(const std::string &handle, DeviceIndex device) {
    const PageHandle named = PageHandle::parse(handle);
    auto *pages = new ImportedPages(named, device);
    return {pages->address(named.offset), [this, device, handle, pages](void *) {
              {
                const std::lock_guard<std::mutex> lock(mutex);
                forget(handle);
              }
              /* cudaIpcCloseMemHandle waits for the device as well. Mapped pages stay while work may use them. */
              const c10::cuda::CUDAGuard guard(device);
              const cudaError_t done = cudaDeviceSynchronize();
              C10_CUDA_CHECK_WARN(done);
              if (done == cudaSuccess) {
                delete pages;
              }
            }};
  }

 public:
  std::shared_ptr<void> open(const std::string &handle) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto known = open_here.find(handle);
    if (std::shared_ptr<void> memory = known == open_here.end() ? nullptr : known->second.lock()) {
      return memory;
    }
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    std::shared_ptr<void> memory =
        PageHandle::is_in(handle) ? open_pages(handle, device) : open_segment(handle, device);
    open_here[handle] = memory;
    return memory;
  }
};

}  // namespace cachalot_torch
