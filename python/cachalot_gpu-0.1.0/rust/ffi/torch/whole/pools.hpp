/*
 * Private pools: options that PyTorch sets one by one, and checkpoints.
 */
#pragma once

#include "exported_pages.hpp"
#include "history.hpp"

#include <c10/cuda/CUDAGuard.h>

#include <map>
#include <memory>

namespace cachalot_torch {

/* The options of PyTorch's pools, which PyTorch changes singly and the library together. */
class PoolFlags {
  std::mutex mutex;
  std::map<std::pair<DeviceIndex, MempoolId_t>, uint32_t> flags;

 public:
  void set(DeviceIndex device, const MempoolId_t &pool, uint32_t flag, bool on) {
    const std::lock_guard<std::mutex> lock(mutex);
    uint32_t &current = flags[{device, pool}];
    const uint32_t changed = on ? current | flag : current & ~flag;
    require(cachalot_torch_set_pool_flags(device, library_pool(pool), changed));
    current = changed;
  }

  /* Forgets the options of a pool whose last user has gone: a later pool of this name has none. */
  void forget(DeviceIndex device, const MempoolId_t &pool) {
    const std::lock_guard<std::mutex> lock(mutex);
    flags.erase({device, pool});
  }
};

/* Lets PyTorch's allocator of a MemPool supply the pool's segments. The allocator lives until the pool has no users and
 * no segment. */
inline void supply(DeviceIndex device, const MempoolId_t &pool, std::shared_ptr<interface::CUDAAllocator> allocator) {
  using Kept = std::shared_ptr<interface::CUDAAllocator>;
  const auto obtain = [](void *kept, size_t bytes, int on) -> void * {
    /* No exception may pass through the library. */
    try {
      const c10::cuda::CUDAGuard guard(static_cast<DeviceIndex>(on));
      return (*static_cast<Kept *>(kept))->raw_alloc(bytes);
    } catch (const std::exception &error) {
      TORCH_WARN("the allocator of a MemPool has no segment: ", error.what());
      return nullptr;
    }
  };
  const auto take_back = [](void *kept, void *segment, size_t, int on) {
    try {
      const c10::cuda::CUDAGuard guard(static_cast<DeviceIndex>(on));
      (*static_cast<Kept *>(kept))->raw_delete(segment);
    } catch (const std::exception &error) {
      TORCH_WARN("the allocator of a MemPool takes no segment back: ", error.what());
    }
  };
  const auto let_go = [](void *kept) { delete static_cast<Kept *>(kept); };
  auto kept = std::make_unique<Kept>(std::move(allocator));
  require(cachalot_torch_supply_pool(device, library_pool(pool), obtain, take_back, let_go, kept.get()));
  static_cast<void>(kept.release());
}

/* The blocks in use of a pool at one moment. */
struct Checkpoint : interface::AllocatorState {
  MempoolId_t pool;
  std::vector<cachalot_torch_block> live;
};

/* The allocated blocks of a pool, by address. PyTorch makes checkpoints only while no other stream uses a block. */
inline std::vector<cachalot_torch_block> live_blocks(DeviceIndex device, const MempoolId_t &pool) {
  std::vector<cachalot_torch_block> live;
  for (const Segment &segment : segments_of(device, pool)) {
    for (const cachalot_torch_block &block : segment.blocks) {
      if (block.allocated != 0) {
        live.push_back(block);
      }
    }
  }
  return live;
}

inline std::shared_ptr<Checkpoint> checkpoint(DeviceIndex device, const MempoolId_t &pool) {
  auto taken = std::make_shared<Checkpoint>();
  taken->pool = pool;
  taken->live = live_blocks(device, pool);
  return taken;
}

/* Returns a pool to a checkpoint: frees every block, and allocates the blocks of the checkpoint where they were. Free
 * neighbours merge, so the free blocks are those of the checkpoint, too. */
inline interface::CheckpointDelta restore(DeviceIndex device, const Checkpoint &state, c10::DeleterFnPtr deleter,
                                          ExportedPages &exported) {
  interface::CheckpointDelta delta;
  for (const cachalot_torch_block &block : live_blocks(device, state.pool)) {
    exported.forget(block.base);
    require(cachalot_free(handle(), block.base));
    delta.ptrs_freed.push_back(block.base);
  }
  /* A freed block that other streams have used stays pending until the allocator has polled the streams' events. */
  require(cachalot_process_events(handle(), device));
  for (const cachalot_torch_block &block : state.live) {
    require(cachalot_torch_allocate_at(library_pool(state.pool), block.base, block.bytes, block.requested_bytes));
    delta.dataptrs_allocd.emplace_back(block.base, block.base, deleter, c10::Device(c10::DeviceType::CUDA, device));
  }
  return delta;
}

}  // namespace cachalot_torch
