/*
 * PyTorch's allocator of pinned memory, every method of it, over an allocator with CACHALOT_HOST: at::HostAllocator.
 *
 * Compiled for the installed PyTorch, against PyTorch's and CUDA's headers. cachalot_torch_install_pinned puts the
 * allocator in place. PyTorch's own allocator stays for the blocks that it has given out.
 */
#include "../failure.hpp"
#include "captured.hpp"

#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/csrc/api/include/torch/version.h>
#endif

/* The installed version as one number: 211 is 2.11. */
#define CACHALOT_TORCH (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)

#if CACHALOT_TORCH < 208 || CACHALOT_TORCH > 215
#error "the allocator of pinned memory is written for PyTorch 2.8 to 2.15"
#endif

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#if CACHALOT_TORCH >= 214
#include "history.hpp"
#endif

#include <chrono>
#include <cstring>
#include <exception>

namespace cachalot_torch {
namespace {

/* The name of a pool of graphs. Versions before 2.11 do not report captures. */
using Pool = std::pair<unsigned long long, unsigned long long>;
using Clock = std::chrono::steady_clock;

int64_t microseconds_since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count();
}

cachalot_stream handle_of(c10::Stream stream) {
  return reinterpret_cast<cachalot_stream>(c10::cuda::CUDAStream(stream).stream());
}

void read(const cachalot_counter &counter, c10::CachingAllocator::Stat &stat) {
  stat.current = counter.current;
  stat.peak = counter.peak;
  stat.allocated = counter.allocated;
  stat.freed = counter.freed;
}

class Pinned final : public at::HostAllocator {
  /* The settings for the allocator, which is made by the first request. */
  std::string config;
  at::HostAllocator *before;
  std::mutex mutex;
  std::atomic<cachalot_allocator *> made{nullptr};
  /* The statistics that only this file knows, under `mutex`. */
  c10::CachingAllocator::DurationStat alloc_time, free_time;
  std::vector<int64_t> buckets = std::vector<int64_t>(64);
  /* The segments obtained so far, to tell which request has obtained one. */
  std::atomic<uint64_t> obtained{0};
  Captured<Pool, c10::Stream> captured;
#if CACHALOT_TORCH >= 214
  PinnedHistory history;
#endif

  static void delete_block(void *block) { in_place->free(block); }

  cachalot_allocator *find() { return made.load(std::memory_order_acquire); }

  /* The allocator. The first call makes it beside a GPU that is in use already, else beside the current one. */
  cachalot_allocator *handle() {
    if (cachalot_allocator *const found = find()) {
      return found;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    cachalot_allocator *allocator = find();
    if (allocator == nullptr) {
      const int device = c10::cuda::getDeviceIndexWithPrimaryContext().value_or(c10::cuda::current_device());
      cachalot_options options = CACHALOT_OPTIONS_INIT;
      // PyTorch takes its streams from a pool, and destroys none.
      options.flags = CACHALOT_HOST | CACHALOT_STREAMS_REPORTED;
      options.devices = &device;
      options.device_count = 1;
      options.config = config.c_str();
      require(cachalot_create(&options, &allocator));
      made.store(allocator, std::memory_order_release);
    }
    return allocator;
  }

  cachalot_statistics stats() {
    cachalot_statistics stats = CACHALOT_STATISTICS_INIT;
    if (cachalot_allocator *const allocator = find()) {
      require(cachalot_get_statistics(allocator, 0, &stats));
    }
    return stats;
  }

  /* Counts a request that took so long that it may have obtained a segment. */
  void count_segment(size_t bytes, int64_t microseconds) {
    const uint64_t now = stats().device_allocs;
    if (obtained.exchange(now) != now) {
      const std::lock_guard<std::mutex> lock(mutex);
      alloc_time.increase(microseconds);
      ++buckets[bytes > 1 ? 64 - __builtin_clzll(bytes - 1) : 0];
    }
  }

  /* Frees a block of the program. A graph may keep it. */
  void free(void *block) {
    if (block == nullptr) {
      return;
    }
#if CACHALOT_TORCH >= 214
    history.free_requested(block);
#endif
    if (!captured.keep(block)) {
      give_back(block);
    }
  }

  void give_back(void *block) {
#if CACHALOT_TORCH >= 214
    /* Before the next request can get the block. */
    history.free_completed(block);
#endif
    const cachalot_status status = cachalot_free(find(), block);
    /* The memory of a child, and of a process that ends, is the system's. */
    const bool over = status == CACHALOT_ERROR_FORKED || status == CACHALOT_ERROR_SHUTDOWN;
    if (status != CACHALOT_OK && !over) {
      TORCH_WARN_ONCE("cachalot could not free pinned memory: ", cachalot_last_error());
    }
  }

  /* Frees what graphs have used that no longer exist. Their last launch may still run. */
  void free_released() {
    const std::vector<void *> blocks = captured.take_released();
    if (blocks.empty()) {
      return;
    }
    for (c10::DeviceIndex device = 0; device < c10::cuda::device_count(); ++device) {
      if (c10::cuda::hasPrimaryContext(device)) {
        const c10::cuda::CUDAGuard guard(device);
        c10::cuda::device_synchronize();
      }
    }
    for (void *const block : blocks) {
      give_back(block);
    }
  }

 public:
  /* The allocator in place. Never destroyed: blocks are freed to the end of the process. */
  static Pinned *in_place;

  Pinned(std::string config, at::HostAllocator *before) : config(std::move(config)), before(before) {}

  at::DataPtr allocate(size_t bytes) override {
    void *block = nullptr;
    if (bytes > 0) {
      cachalot_allocator *const allocator = handle();
      /* A request that is served from the cache takes less than a tenth of this. */
      constexpr int64_t SHORT_US = 5;
      const Clock::time_point begin = Clock::now();
      require(cachalot_malloc(allocator, 0, bytes, nullptr, &block));
      const int64_t took = microseconds_since(begin);
      if (took > SHORT_US) {
        count_segment(bytes, took);
      }
      const Pool pool = captured.note(block, [] { return c10::cuda::getCurrentCUDAStream().unwrap(); });
#if CACHALOT_TORCH >= 214
      history.allocated(block, bytes, pool);
#else
      static_cast<void>(pool);
#endif
    }
    return {block, block, &delete_block, at::DeviceType::CPU};
  }

  at::DeleterFnPtr raw_deleter() const override { return &delete_block; }

  void copy_data(void *to, const void *from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

  /* Reports a use by work that is queued. PyTorch asks for any memory, also for other memory than this allocator's. */
  bool record_event(void *at, void *context, c10::Stream stream) override {
    for (void *const block : {context, at}) {
      if (block == nullptr || find() == nullptr) {
        continue;
      }
      if (captured.use(block)) {
        return true;
      }
      const cachalot_status status = cachalot_record_stream(find(), block, handle_of(stream));
      if (status != CACHALOT_ERROR_INVALID_POINTER) {
        require(status);
        return true;
      }
    }
    return before != nullptr && before->record_event(at, context, stream);
  }

  void empty_cache() override {
    if (find() != nullptr) {
      free_released();
      const uint64_t freed = stats().device_frees;
      const Clock::time_point begin = Clock::now();
      require(cachalot_empty_cache(find(), 0));
      const int64_t took = microseconds_since(begin);
      if (stats().device_frees > freed) {
        const std::lock_guard<std::mutex> lock(mutex);
        free_time.increase(took);
      }
    }
    if (before != nullptr) {
      before->empty_cache();
    }
  }

  at::HostStats get_stats() override {
    const cachalot_statistics now = stats();
    at::HostStats stats;
#if CACHALOT_TORCH >= 210
    read(now.active_blocks, stats.active_requests);
    read(now.active_bytes, stats.active_bytes);
    read(now.segments, stats.allocations);
    read(now.reserved_bytes, stats.allocated_bytes);
#else
    read(now.active_blocks, stats.allocation);
    read(now.active_bytes, stats.allocated_bytes);
    read(now.segments, stats.segment);
    read(now.reserved_bytes, stats.reserved_bytes);
#endif
    stats.num_host_alloc = static_cast<int64_t>(now.device_allocs);
    stats.num_host_free = static_cast<int64_t>(now.device_frees);
    const std::lock_guard<std::mutex> lock(mutex);
    stats.host_alloc_time = alloc_time;
    stats.host_free_time = free_time;
#if CACHALOT_TORCH >= 210
    stats.bucket_allocation = buckets;
#endif
    return stats;
  }

  void reset_accumulated_stats() override {
    if (find() != nullptr) {
      require(cachalot_reset_accumulated(find(), 0));
    }
    obtained.store(0);
    const std::lock_guard<std::mutex> lock(mutex);
    alloc_time.reset_accumulated();
    free_time.reset_accumulated();
    std::fill(buckets.begin(), buckets.end(), 0);
  }

  void reset_peak_stats() override {
    if (find() != nullptr) {
      require(cachalot_reset_peaks(find(), 0));
    }
    const std::lock_guard<std::mutex> lock(mutex);
    alloc_time.reset_peak();
    free_time.reset_peak();
  }

#if CACHALOT_TORCH >= 211
  void begin_allocate_to_pool(c10::MempoolId_t pool, std::function<bool(c10::Stream)> filter) override {
    TORCH_CHECK(captured.begin(pool, std::move(filter)), "a graph is being captured into this pool already");
  }

  void end_allocate_to_pool(c10::MempoolId_t pool) override {
    TORCH_CHECK(captured.end(pool), "no graph is being captured into this pool");
  }

  void release_pool(c10::MempoolId_t pool) override {
    TORCH_CHECK(captured.release(pool), "the pool was never captured into");
  }
#endif

#if CACHALOT_TORCH >= 214
  void record_history(bool on, CreateContextFn gather, size_t entries, RecordContext when, bool clear) override {
    history.record(on, gather, entries, when, clear);
  }
  bool is_history_enabled() const override { return history.is_recording(); }
  std::vector<at::HostSegmentInfo> get_segments() override { return history.segments(); }
  std::vector<TraceEntry> get_traces() override { return history.traces(); }
  void record_external_register(void *memory, size_t bytes) override { history.registered(memory, bytes); }
  void record_external_unregister(void *memory) override { history.unregistered(memory); }
#endif
};

Pinned *Pinned::in_place = nullptr;

}  // namespace
}  // namespace cachalot_torch

/* Puts the allocator in the place of PyTorch's. Returns NULL, or why that failed; the text is valid forever. */
extern "C" CACHALOT_API const char *cachalot_torch_install_pinned(const char *config) {
  using cachalot_torch::Pinned;
  try {
    at::HostAllocator *const before = at::getHostAllocator(at::kCUDA);
    Pinned::in_place = new Pinned(config, before);
    at::setHostAllocator(at::kCUDA, Pinned::in_place, 1);
    if (at::getHostAllocator(at::kCUDA) != Pinned::in_place) {
      return "another allocator of pinned memory is in place";
    }
    return nullptr;
  } catch (const std::exception &error) {
    static const std::string text = error.what();
    return text.c_str();
  }
}
