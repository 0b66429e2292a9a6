/*
 * Memory for torch.cuda.caching_allocator_enable(False): each request is a call of cudaMalloc, which no statistic counts.
 */
#pragma once

#include "versions.hpp"

#include <c10/cuda/CUDAException.h>

#include <atomic>
#include <mutex>
#include <unordered_set>

namespace cachalot_torch {

class Uncached {
  std::mutex mutex;
  std::unordered_set<void *> blocks;
  /* The number of blocks. A program that never disables the cache takes no lock. */
  std::atomic<size_t> count{0};

 public:
  void *allocate(size_t bytes) {
    void *block = nullptr;
    C10_CUDA_CHECK(cudaMalloc(&block, bytes));
    const std::lock_guard<std::mutex> lock(mutex);
    blocks.insert(block);
    count.store(blocks.size(), std::memory_order_release);
    return block;
  }

  bool holds(void *block) {
    if (count.load(std::memory_order_acquire) == 0) {
      return false;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    return blocks.count(block) > 0;
  }

  /* Frees a block of allocate, and returns true. Returns false for any other address. */
  bool release(void *block) {
    if (count.load(std::memory_order_acquire) == 0) {
      return false;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (blocks.erase(block) == 0) {
        return false;
      }
      count.store(blocks.size(), std::memory_order_release);
    }
    C10_CUDA_CHECK_WARN(cudaFree(block));
    return true;
  }
};

}  // namespace cachalot_torch
