/*
 * The history of pinned memory for torch.cuda.memory._record_memory_history(record_pinned_host_memory=True), which
 * PyTorch has since 2.14.
 *
 * It holds the calls of the program. A block that was allocated while nothing was recorded is not in it, and a free
 * counts as completed at the call, also if the GPU still uses the block.
 */
#pragma once

#include "../whole/ring.hpp"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace cachalot_torch {

using c10::CachingDeviceAllocator::CreateContextFn;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::TraceEntry;

class PinnedHistory {
  using Context = std::shared_ptr<c10::GatheredContext>;
  struct Block {
    size_t bytes = 0;
    c10::MempoolId_t pool;
    Context context;
    /* Whether the program has it. A graph can keep a block that the program has freed. */
    bool allocated = true;
    /* Whether the program has pinned its own memory there. */
    bool registered = false;
  };

  std::mutex mutex;
  std::atomic<bool> recording{false};
  std::atomic<RecordContext> level{RecordContext::NEVER};
  std::atomic<CreateContextFn> gatherer{nullptr};
  Ring<TraceEntry> entries;
  std::unordered_map<void *, Block> blocks;
  /* The number of blocks. A program that records nothing takes no lock. */
  std::atomic<size_t> count{0};
  c10::ApproximateClockToUnixTimeConverter clock;

  bool is_idle() const { return !is_recording() && count.load(std::memory_order_acquire) == 0; }

  /* The calling thread's stack, which may take Python's lock: not under the mutex. */
  Context gather(RecordContext for_level) {
    const CreateContextFn function = gatherer.load(std::memory_order_acquire);
    const bool wanted = is_recording() && level.load(std::memory_order_acquire) >= for_level;
    return wanted && function != nullptr ? function() : nullptr;
  }

  /* Adds an event. The mutex is locked. */
  void push(TraceEntry::Action action, void *memory, const Block &block, const Context &context) {
    if (is_recording()) {
      constexpr c10::DeviceIndex HOST = -1;
      const bool shown = level.load(std::memory_order_relaxed) >= RecordContext::ALLOC;
      entries.push(TraceEntry(action, HOST, reinterpret_cast<size_t>(memory), block.bytes, nullptr, block.pool,
                              c10::getApproximateTime(), shown ? context : nullptr));
    }
  }

  void add(void *memory, Block block) {
    block.context = gather(RecordContext::STATE);
    const std::lock_guard<std::mutex> lock(mutex);
    if (block.registered) {
      push(TraceEntry::SEGMENT_ALLOC, memory, block, nullptr);
    }
    push(TraceEntry::ALLOC, memory, block, block.context);
    blocks.insert_or_assign(memory, std::move(block));
    count.store(blocks.size(), std::memory_order_release);
  }

 public:
  bool is_recording() const { return recording.load(std::memory_order_relaxed); }

  /* Starts, changes or ends the recording. The events stay until `clear`. */
  void record(bool on, CreateContextFn function, size_t most, RecordContext when, bool clear) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (on) {
      gatherer.store(function, std::memory_order_release);
      entries.resize(most);
    }
    level.store(on ? when : RecordContext::NEVER, std::memory_order_release);
    recording.store(on, std::memory_order_release);
    if (clear) {
      entries.clear();
    }
  }

  void allocated(void *block, size_t bytes, const c10::MempoolId_t &pool) {
    if (is_recording()) {
      add(block, {bytes, pool, nullptr});
    }
  }

  void free_requested(void *block) {
    if (is_idle()) {
      return;
    }
    const Context own = gather(RecordContext::ALL);
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = blocks.find(block);
    if (found != blocks.end()) {
      push(TraceEntry::FREE_REQUESTED, block, found->second, own != nullptr ? own : found->second.context);
      found->second.allocated = false;
    }
  }

  void free_completed(void *block) {
    if (is_idle()) {
      return;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = blocks.find(block);
    if (found != blocks.end()) {
      push(TraceEntry::FREE_COMPLETED, block, found->second, found->second.context);
      if (found->second.registered) {
        push(TraceEntry::SEGMENT_FREE, block, found->second, nullptr);
      }
      blocks.erase(found);
      count.store(blocks.size(), std::memory_order_release);
    }
  }

  /* Reports memory that the program pins itself. */
  void registered(void *memory, size_t bytes) {
    if (is_recording()) {
      add(memory, {bytes, {0, 0}, nullptr, true, true});
    }
  }

  void unregistered(void *memory) {
    free_requested(memory);
    free_completed(memory);
  }

  /* The blocks that were allocated while the history was recorded. */
  std::vector<at::HostSegmentInfo> segments() {
    std::vector<at::HostSegmentInfo> found;
    const std::lock_guard<std::mutex> lock(mutex);
    for (const auto &[memory, block] : blocks) {
      at::HostSegmentInfo &info = found.emplace_back();
      info.address = reinterpret_cast<size_t>(memory);
      info.size = block.bytes;
      info.allocated = block.allocated;
      info.active = true;
      info.owner_private_pool_id = block.pool;
      info.context_when_allocated = block.context;
    }
    return found;
  }

  std::vector<TraceEntry> traces() {
    const auto nanoseconds = clock.makeConverter();
    const std::lock_guard<std::mutex> lock(mutex);
    std::vector<TraceEntry> found = entries.copy();
    for (auto &entry : found) {
      entry.time_.t_ = nanoseconds(entry.time_.approx_t_) / 1000;
    }
    return found;
  }
};

}  // namespace cachalot_torch
