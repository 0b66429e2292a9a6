/*
 * PyTorch's CUDA allocator, every method of it, over the library: c10::cuda::CUDACachingAllocator::CUDAAllocator.
 *
 * Compiled with ../shim.cpp for the installed PyTorch, against PyTorch's and CUDA's headers. cachalot_torch_install
 * puts the allocator in place, before PyTorch has used its own.
 */
#include "history.hpp"
#include "library.hpp"
#include "pools.hpp"
#include "private_reserved.hpp"
#include "settings.hpp"
#include "sharing.hpp"
#include "uncached.hpp"
#include "versions.hpp"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <exception>
#include <limits>

namespace cachalot_torch {
namespace {

DeviceIndex current_device() {
  DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

/* Tells PyTorch's profiler of `bytes` more or less on a device. */
void report_to_profiler(void *block, int64_t bytes, DeviceIndex device) {
  cachalot_statistics stats = CACHALOT_STATISTICS_INIT;
  require(cachalot_get_statistics(handle(), device, &stats));
  c10::reportMemoryUsageToProfiler(block, bytes, static_cast<size_t>(stats.allocated_bytes.current),
                                   static_cast<size_t>(stats.reserved_bytes.current),
                                   c10::Device(c10::DeviceType::CUDA, device));
}

class Whole final : public interface::CUDAAllocator {
  std::atomic<bool> started{false};
  std::atomic<bool> enabled{true};
  Uncached uncached;
  History history;
  ExportedPages exported;
  Opened opened;
  PoolFlags pool_flags;
  std::mutex mutex;
  /* The fractions as they were given, from which the last digits of a limit in bytes cannot be computed. */
  std::unordered_map<DeviceIndex, std::pair<uint64_t, double>> fractions;
  std::vector<interface::OutOfMemoryObserver> observers;
#if CACHALOT_TORCH >= 212
  std::vector<interface::OomRejectionObserver> rejection_observers;
#endif
#if CACHALOT_TORCH >= 213
  PrivateReserved private_reserved;
#endif

  static void delete_block(void *block);
  static int on_shortage(void *userdata, int device, size_t bytes);
  static void on_out_of_memory(void *userdata, const cachalot_oom_report *report);
  static uint64_t limit_of(DeviceIndex device, uint64_t *total);

  template <typename Obtain>
  void *obtain(DeviceIndex device, const Obtain &block_of_library);
  void *request(size_t bytes, DeviceIndex device, cudaStream_t stream);
  void tell_of_rejection(size_t bytes, DeviceIndex device);
  interface::SnapshotInfo take_snapshot(const MempoolId_t &pool, bool with_traces);
  void retain_pool(DeviceIndex device, const MempoolId_t &pool,
                   std::shared_ptr<interface::CUDAAllocator> own_allocator);
  void empty(const MempoolId_t &pool);

 public:
  /* The allocator in place. Never destroyed: blocks are freed to the end of the process. */
  static Whole *in_place;

  Whole() { in_place = this; }

  /* Memory */
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return delete_block; }
  void *raw_alloc(size_t bytes) override;
  void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
#if CACHALOT_TORCH >= 213
  c10::DataPtr allocateWithAddress(size_t bytes, void *address) override;
#endif
  void raw_delete(void *block) override;
  void copy_data(void *to, const void *from, std::size_t bytes) const override;
  void *getBaseAllocation(void *block, size_t *bytes) override;
  using interface::CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr &block, c10::cuda::CUDAStream stream) override;

  /* The cache */
  void init(int count) override;
  bool initialized() override { return started; }
  double getMemoryFraction(DeviceIndex device) override;
  void setMemoryFraction(double fraction, DeviceIndex device) override;
  void enable(bool value) override { enabled = value; }
  bool isEnabled() const override { return enabled; }
  void cacheInfo(DeviceIndex device, size_t *largest) override;
#if CACHALOT_TORCH >= 208
  void emptyCache(MempoolId_t pool = {0, 0}) override { empty(pool); }
#else
  void emptyCache() override { empty({0, 0}); }
#endif
#if CACHALOT_TORCH >= 210
  std::vector<interface::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override;
#endif

  /* Statistics, snapshots and history */
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;
#if CACHALOT_TORCH >= 211
  interface::SnapshotInfo snapshot(MempoolId_t pool = {0, 0}, bool include_traces = true) override {
    return take_snapshot(pool, include_traces);
  }
#elif CACHALOT_TORCH >= 208
  interface::SnapshotInfo snapshot(MempoolId_t pool = {0, 0}) override { return take_snapshot(pool, true); }
#else
  interface::SnapshotInfo snapshot() override { return take_snapshot({0, 0}, true); }
#endif
  bool isHistoryEnabled() override { return history.is_recording(); }
#if CACHALOT_TORCH >= 211
  void recordHistory(bool on, CreateContextFn gather, size_t entries, RecordContext when, bool clear,
                     const std::vector<std::string> &skipped) override {
    history.record(on, {gather, entries, when, skipped}, clear);
  }
#elif CACHALOT_TORCH >= 208
  void recordHistory(bool on, CreateContextFn gather, size_t entries, RecordContext when, bool clear) override {
    history.record(on, {gather, entries, when, {}}, clear);
  }
#else
  void recordHistory(bool on, CreateContextFn gather, size_t entries, RecordContext when) override {
    history.record(on, {gather, entries, when, {}}, false);
  }
#endif
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &metadata) override {
    history.annotate(metadata);
  }
#if CACHALOT_TORCH >= 208
  void pushCompileContext(std::string &text) override { of_thread().compile_contexts.push(text); }
  void popCompileContext() override;
#endif
#if CACHALOT_TORCH >= 210
  void setUserMetadata(const std::string &metadata) override { of_thread().user_metadata = metadata; }
  std::string getUserMetadata() override { return of_thread().user_metadata; }
#endif
#if CACHALOT_TORCH >= 212
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void *address) override;
#endif
#if CACHALOT_TORCH >= 214
  bool supportsUserMetadata() override { return true; }
  void annotateMemory(const void *block, const std::string &text) override;
#endif
  void attachOutOfMemoryObserver(interface::OutOfMemoryObserver observer) override;
#if CACHALOT_TORCH >= 212
  void attachOomRejectionObserver(interface::OomRejectionObserver observer) override;
#endif
  void attachAllocatorTraceTracker(interface::AllocatorTraceTracker tracker) override {
    history.track(std::move(tracker));
  }

  /* Pools. The library asks the driver which streams are captured, so markCaptureBegin and markCaptureEnd of 2.13 and
   * later tell it nothing. */
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    cachalot_torch_begin_pool(device, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    cachalot_torch_end_allocate_to_pool(device, library_pool(pool));
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override;
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override;
#if CACHALOT_TORCH >= 211
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                          std::shared_ptr<interface::CUDAAllocator> own_allocator = nullptr) override {
    retain_pool(device, pool, std::move(own_allocator));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool on) override {
    pool_flags.set(device, pool, CACHALOT_POOL_USE_ON_OOM, on);
  }
#elif CACHALOT_TORCH >= 208
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                          interface::CUDAAllocator *own_allocator = nullptr) override {
    /* The program keeps the allocator. */
    retain_pool(device, pool, {own_allocator, [](auto *) {}});
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool) override {
    pool_flags.set(device, pool, CACHALOT_POOL_USE_ON_OOM, true);
  }
#else
  void ensureExistsAndIncrefPool(DeviceIndex device, MempoolId_t pool) override { retain_pool(device, pool, nullptr); }
#endif
#if CACHALOT_TORCH >= 210
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override {
    pool_flags.set(device, pool, CACHALOT_POOL_NO_SPLIT, true);
  }
#endif
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void *> &expected) override;
  std::shared_ptr<interface::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override {
    return checkpoint(device, pool);
  }
  interface::CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                                    std::shared_ptr<interface::AllocatorState> state) override;

  /* Other processes and devices */
  interface::ShareableHandle shareIpcHandle(void *block) override { return share(exported, block); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return opened.open(handle); }
  void enablePeerAccess(DeviceIndex device, DeviceIndex accessed) override;
  cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream,
                          bool p2p_enabled) override;

  std::string name() override { return "cachalot"; }
};

Whole *Whole::in_place = nullptr;

/* ---- Memory ---- */

/* Takes a block of the library, and tells PyTorch of it. */
template <typename Obtain>
void *Whole::obtain(DeviceIndex device, const Obtain &block_of_library) {
  void *block = nullptr;
  {
    const History::Gathered gathered(history, RecordContext::STATE);
    block = block_of_library();
    if (gathered) {
      cachalot_block described = CACHALOT_BLOCK_INIT;
      require(cachalot_get_block(handle(), block, &described));
      history.note(described);
    }
  }
  if (c10::memoryProfilingEnabled()) {
    cachalot_block described = CACHALOT_BLOCK_INIT;
    require(cachalot_get_block(handle(), block, &described));
    report_to_profiler(block, static_cast<int64_t>(described.bytes), device);
  }
  if (const c10::impl::PyInterpreter *interpreter = c10::impl::GPUTrace::get_trace()) {
    (*interpreter)->trace_gpu_memory_allocation(c10::DeviceType::CUDA, reinterpret_cast<uintptr_t>(block));
  }
  return block;
}

void *Whole::request(size_t bytes, DeviceIndex device, cudaStream_t stream) {
  if (!enabled) {
    return uncached.allocate(bytes);
  }
  try {
    return obtain(device, [&] { return cachalot_torch_alloc(bytes, device, stream); });
  } catch (const Rejected &) {
    tell_of_rejection(bytes, device);
    throw;
  }
}

c10::DataPtr Whole::allocate(size_t bytes) {
  const DeviceIndex device = current_device();
  const c10::Device on(c10::DeviceType::CUDA, device);
  if (bytes == 0) {
    return {nullptr, nullptr, delete_block, on};
  }
  void *block = request(bytes, device, c10::cuda::getCurrentCUDAStream(device));
  return {block, block, delete_block, on};
}

void *Whole::raw_alloc(size_t bytes) {
  return bytes == 0 ? nullptr : raw_alloc_with_stream(bytes, c10::cuda::getCurrentCUDAStream(current_device()));
}

void *Whole::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  return bytes == 0 ? nullptr : request(bytes, current_device(), stream);
}

#if CACHALOT_TORCH >= 213
/* The place of a tensor that a graph left, for example: free memory of the current stream, in the pool that has it. */
c10::DataPtr Whole::allocateWithAddress(size_t bytes, void *address) {
  const DeviceIndex device = current_device();
  const c10::Device on(c10::DeviceType::CUDA, device);
  if (bytes == 0) {
    return {nullptr, nullptr, delete_block, on};
  }
  const cachalot_torch_segment segment = segment_at(address).head;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device);
  TORCH_CHECK(segment.device == device && stream_handle(segment.stream_id) == stream, "the memory at ", address,
              " belongs to another device or stream than the current one");
  constexpr size_t UNIT = 512;
  const size_t rounded = (bytes + UNIT - 1) / UNIT * UNIT;
  void *block = obtain(device, [&] {
    TORCH_CHECK(cachalot_torch_allocate_at(segment.pool, address, rounded, bytes) == CACHALOT_OK, "no block of ",
                rounded, " bytes can start at ", address, ": ", cachalot_last_error());
    return address;
  });
  return {block, block, delete_block, on};
}
#endif

void Whole::raw_delete(void *block) {
  if (block == nullptr || uncached.release(block)) {
    return;
  }
  if (const c10::impl::PyInterpreter *interpreter = c10::impl::GPUTrace::get_trace()) {
    (*interpreter)->trace_gpu_memory_deallocation(c10::DeviceType::CUDA, reinterpret_cast<uintptr_t>(block));
  }
  cachalot_block described = CACHALOT_BLOCK_INIT;
  const bool profiled = c10::memoryProfilingEnabled() && cachalot_get_block(handle(), block, &described) == CACHALOT_OK;
  exported.forget(block);
  {
    const History::Gathered gathered(history, RecordContext::ALL);
    cachalot_torch_free(block, 0, 0, nullptr);
  }
  if (profiled) {
    report_to_profiler(block, -static_cast<int64_t>(described.bytes), static_cast<DeviceIndex>(described.device));
  }
}

void Whole::delete_block(void *block) {
  in_place->raw_delete(block);
}

void Whole::copy_data(void *to, const void *from, std::size_t bytes) const {
  C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, c10::cuda::getCurrentCUDAStream()));
}

void *Whole::getBaseAllocation(void *block, size_t *bytes) {
  cachalot_block described = CACHALOT_BLOCK_INIT;
  require(cachalot_get_block(handle(), block, &described));
  if (bytes != nullptr) {
    *bytes = described.segment_bytes;
  }
  return described.segment_base;
}

void Whole::recordStream(const c10::DataPtr &block, c10::cuda::CUDAStream stream) {
  /* Memory of another owner, such as another process, has another deleter. cudaFree waits for every stream. */
  if (block.get() != nullptr && block.get_deleter() == delete_block && !uncached.holds(block.get())) {
    require(cachalot_record_stream(handle(), block.get(), stream));
  }
}

/* ---- The cache ---- */

void Whole::init(int count) {
  cachalot_torch_init(count);
  /* Not earlier: the process that puts the allocator in place may leave CUDA to its children. */
  if (count > 0 && !started) {
    require(cachalot_on_shortage(handle(), on_shortage, nullptr));
    require(cachalot_on_out_of_memory(handle(), on_out_of_memory, this));
    started = true;
  }
}

/* The limit of a device in bytes, and its memory. */
uint64_t Whole::limit_of(DeviceIndex device, uint64_t *total) {
  cachalot_device_info info = CACHALOT_DEVICE_INFO_INIT;
  require(cachalot_get_device_info(handle(), device, &info));
  *total = info.total_bytes;
  return info.limit_bytes;
}

double Whole::getMemoryFraction(DeviceIndex device) {
  uint64_t total = 0;
  const uint64_t limit = limit_of(device, &total);
  const std::lock_guard<std::mutex> lock(mutex);
  const auto given = fractions.find(device);
  if (given != fractions.end() && given->second.first == limit) {
    return given->second.second;
  }
  return limit >= total ? 1.0 : static_cast<double>(limit) / static_cast<double>(total);
}

void Whole::setMemoryFraction(double fraction, DeviceIndex device) {
  TORCH_CHECK_VALUE(0 <= fraction && fraction <= 1, "the fraction must be from 0 to 1, not ", fraction);
  require(cachalot_set_memory_fraction(handle(), device, fraction));
  uint64_t total = 0;
  const uint64_t limit = limit_of(device, &total);
  const std::lock_guard<std::mutex> lock(mutex);
  fractions[device] = {limit, fraction};
}

void Whole::cacheInfo(DeviceIndex device, size_t *largest) {
  if (*largest == 0) {
    size_t total = 0;
    const c10::cuda::CUDAGuard guard(device);
    C10_CUDA_CHECK(cudaMemGetInfo(largest, &total));
  }
  for (const Segment &segment : segments()) {
    for (const cachalot_torch_block &block : segment.blocks) {
      if (segment.head.device == device && block.active == 0) {
        *largest = std::max(*largest, block.bytes);
      }
    }
  }
}

void Whole::empty(const MempoolId_t &pool) {
  const History::Gathered gathered(history, RecordContext::ALL);
  for (int device = 0; device < device_count(); ++device) {
    if (pool == MempoolId_t{0, 0}) {
      /* What waits for the end of a capture stays. */
      const cachalot_status emptied = cachalot_empty_cache(handle(), device);
      require(emptied == CACHALOT_ERROR_CAPTURING ? CACHALOT_OK : emptied);
      continue;
    }
    /* A pool without memory is gone already, and one with memory of a graph keeps it, as in PyTorch. */
    const cachalot_status emptied = cachalot_pool_empty(handle(), device, library_pool(pool));
    const bool done = emptied == CACHALOT_ERROR_UNKNOWN_POOL || emptied == CACHALOT_ERROR_STILL_HELD;
    require(done ? CACHALOT_OK : emptied);
  }
}

#if CACHALOT_TORCH >= 210
std::vector<interface::StreamSegmentSize> Whole::getExpandableSegmentSizes(DeviceIndex device) {
  std::vector<interface::StreamSegmentSize> sizes;
  for (const Segment &segment : segments()) {
    if (segment.head.device == device && segment.head.expandable != 0) {
      sizes.emplace_back(stream_handle(segment.head.stream_id), segment.head.large == 0, segment.head.bytes);
    }
  }
  return sizes;
}
#endif

/* ---- Statistics, snapshots and history ---- */

c10::CachingDeviceAllocator::DeviceStats Whole::getDeviceStats(DeviceIndex device) {
  auto stats = device_stats(device);
#if CACHALOT_TORCH >= 213
  private_reserved.read(device, stats);
#endif
  return stats;
}

void Whole::resetAccumulatedStats(DeviceIndex device) {
  require(cachalot_reset_accumulated(handle(), device));
#if CACHALOT_TORCH >= 213
  private_reserved.reset_accumulated(device);
#endif
}

void Whole::resetPeakStats(DeviceIndex device) {
  require(cachalot_reset_peaks(handle(), device));
#if CACHALOT_TORCH >= 213
  private_reserved.reset_peaks(device);
#endif
}

/* Notes the turn in which a segment was obtained, where the version of PyTorch has a place for it: NCCL registers the
 * segments of a pool in this order, which must be the same in all processes. */
template <typename Info>
void number_segment(Info &info, uint32_t number) {
  if constexpr (requires { info.registration_counter; }) {
    info.registration_counter = static_cast<decltype(info.registration_counter)>(number);
  }
}

/* A segment in PyTorch's form, with the stacks that the history knows. */
SegmentInfo describe(const Segment &segment, History &history) {
  SegmentInfo info;
  info.device = static_cast<DeviceIndex>(segment.head.device);
  info.address = reinterpret_cast<size_t>(segment.head.base);
  info.total_size = segment.head.bytes;
  info.stream = stream_handle(segment.head.stream_id);
  info.is_large = segment.head.large != 0;
  info.is_expandable = segment.head.expandable != 0;
  info.owner_private_pool_id = {segment.head.pool.first, segment.head.pool.second};
  info.context_when_allocated = history.of_segment(segment.head.base);
  number_segment(info, segment.head.number);
  for (const cachalot_torch_block &block : segment.blocks) {
    BlockInfo &described = info.blocks.emplace_back();
    described.size = block.bytes;
    described.requested_size = block.requested_bytes;
    described.allocated = block.allocated != 0;
    described.active = block.active != 0;
    if (described.allocated) {
      info.allocated_size += block.bytes;
    }
    if (described.active) {
      info.active_size += block.bytes;
      info.requested_size += block.requested_bytes;
      described.context_when_allocated = history.of_block(block.base);
    }
  }
  return info;
}

interface::SnapshotInfo Whole::take_snapshot(const MempoolId_t &pool, bool with_traces) {
  interface::SnapshotInfo info;
  std::vector<size_t> active(static_cast<size_t>(device_count()), 0);
  for (const Segment &segment : segments()) {
    const MempoolId_t own{segment.head.pool.first, segment.head.pool.second};
    if (pool == MempoolId_t{0, 0} || pool == own) {
      info.segments.push_back(describe(segment, history));
      active[static_cast<size_t>(segment.head.device)] += info.segments.back().active_size;
    }
  }
  std::stable_sort(info.segments.begin(), info.segments.end(),
                   [](const SegmentInfo &one, const SegmentInfo &other) { return one.device < other.device; });
  history.read(active, with_traces, info);
  info.config_metadata = describe_settings();
  return info;
}

#if CACHALOT_TORCH >= 208
void Whole::popCompileContext() {
  if (!of_thread().compile_contexts.empty()) {
    of_thread().compile_contexts.pop();
  }
}
#endif

#if CACHALOT_TORCH >= 212
std::shared_ptr<c10::GatheredContext> Whole::getContextForPointer(const void *address) {
  cachalot_block block = CACHALOT_BLOCK_INIT;
  return cachalot_get_block(handle(), address, &block) == CACHALOT_OK ? history.of_block(block.base) : nullptr;
}
#endif

#if CACHALOT_TORCH >= 214
void Whole::annotateMemory(const void *address, const std::string &text) {
  cachalot_block block = CACHALOT_BLOCK_INIT;
  TORCH_CHECK(cachalot_get_block(handle(), address, &block) == CACHALOT_OK && block.base == address,
              "no block starts at ", address);
  if (history.is_recording()) {
    const Segment segment = segment_at(address);
    const History::Gathered gathered(history, RecordContext::ALLOC);
    history.annotate(segment, block, text);
  }
}
#endif

void Whole::attachOutOfMemoryObserver(interface::OutOfMemoryObserver observer) {
  const std::lock_guard<std::mutex> lock(mutex);
  observers.push_back(std::move(observer));
}

#if CACHALOT_TORCH >= 212
void Whole::attachOomRejectionObserver(interface::OomRejectionObserver observer) {
  const std::lock_guard<std::mutex> lock(mutex);
  rejection_observers.push_back(std::move(observer));
}
#endif

/* Reports a request that was rejected. The error of the request reaches the program, whatever an observer does. */
void Whole::tell_of_rejection(size_t bytes, DeviceIndex device) {
#if CACHALOT_TORCH >= 212
  std::vector<interface::OomRejectionObserver> told;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    told = rejection_observers;
  }
  cachalot_device_info info = CACHALOT_DEVICE_INFO_INIT;
  if (told.empty() || cachalot_get_device_info(handle(), device, &info) != CACHALOT_OK) {
    return;
  }
  for (const auto &observer : told) {
    try {
      observer(device, bytes, info.reserved_bytes, info.total_bytes);
    } catch (const std::exception &error) {
      TORCH_WARN("an observer of rejected requests has failed: ", error.what());
    }
  }
#else
  static_cast<void>(bytes);
  static_cast<void>(device);
#endif
}

void Whole::on_out_of_memory(void *userdata, const cachalot_oom_report *report) {
  auto &whole = *static_cast<Whole *>(userdata);
  /* No exception may pass through the library. */
  try {
    c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(report->block_bytes),
                                     static_cast<size_t>(report->allocated_bytes),
                                     static_cast<size_t>(report->reserved_bytes),
                                     c10::Device(c10::DeviceType::CUDA, static_cast<DeviceIndex>(report->device)));
    std::vector<interface::OutOfMemoryObserver> told;
    {
      const std::lock_guard<std::mutex> lock(whole.mutex);
      told = whole.observers;
    }
    for (const auto &observer : told) {
      observer(report->device, report->segment_bytes, std::min(report->limit_bytes, report->device_total_bytes),
               report->device_free_bytes);
    }
  } catch (const std::exception &error) {
    TORCH_WARN("an observer of out of memory has failed: ", error.what());
  }
}

int Whole::on_shortage(void *, int, size_t) {
  bool freed = false;
  try {
    for (const std::string &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
      freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    }
  } catch (const std::exception &error) {
    TORCH_WARN("a callback that frees memory has failed: ", error.what());
  }
  return freed ? 1 : 0;
}

/* ---- Pools ---- */

void Whole::retain_pool(DeviceIndex device, const MempoolId_t &pool,
                        std::shared_ptr<interface::CUDAAllocator> own_allocator) {
  require(cachalot_pool_retain(handle(), device, library_pool(pool), 0));
#if CACHALOT_TORCH >= 213
  private_reserved.expect();
#endif
  if (own_allocator == nullptr || own_allocator.get() == this) {
    return;
  }
  try {
    supply(device, pool, std::move(own_allocator));
  } catch (...) {
    releasePool(device, pool);
    throw;
  }
}

void Whole::releasePool(DeviceIndex device, MempoolId_t pool) {
  if (getPoolUseCount(device, pool) == 1) {
    pool_flags.forget(device, pool);
  }
  cachalot_torch_release_pool(device, library_pool(pool));
}

int Whole::getPoolUseCount(DeviceIndex device, MempoolId_t pool) {
  uint32_t users = 0;
  const cachalot_status known = cachalot_get_pool_users(handle(), device, library_pool(pool), &users);
  require(known == CACHALOT_ERROR_UNKNOWN_POOL ? CACHALOT_OK : known);
  return static_cast<int>(users);
}

bool Whole::checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool, const std::unordered_set<void *> &expected) {
  const std::vector<cachalot_torch_block> live = live_blocks(device, pool);
  return live.size() == expected.size() &&
         std::all_of(live.begin(), live.end(), [&](const auto &block) { return expected.count(block.base) > 0; });
}

interface::CheckpointDelta Whole::setCheckpointPoolState(DeviceIndex device,
                                                         std::shared_ptr<interface::AllocatorState> state) {
  const auto checkpoint = std::dynamic_pointer_cast<Checkpoint>(state);
  TORCH_CHECK(checkpoint != nullptr, "the checkpoint was not taken by cachalot");
  const History::Gathered gathered(history, RecordContext::STATE);
  return restore(device, *checkpoint, delete_block, exported);
}

/* ---- Other processes and devices ---- */

void Whole::enablePeerAccess(DeviceIndex device, DeviceIndex accessed) {
  const c10::cuda::CUDAGuard guard(device);
  const cudaError_t enabled_now = cudaDeviceEnablePeerAccess(accessed, 0);
  if (enabled_now == cudaErrorPeerAccessAlreadyEnabled) {
    static_cast<void>(cudaGetLastError());
  } else {
    C10_CUDA_CHECK(enabled_now);
  }
  /* Mapped memory is opened by ranges, which the library does for present and future memory. */
  require(cachalot_enable_peer_access(handle(), accessed, device));
}

cudaError_t Whole::memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                               cudaStream_t stream, bool p2p_enabled) {
  if (p2p_enabled || to_device == from_device) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

}  // namespace
}  // namespace cachalot_torch

/* Puts the allocator in the place of PyTorch's. Returns NULL, or why that failed; the text is valid forever. */
extern "C" CACHALOT_API const char *cachalot_torch_install() {
  using cachalot_torch::Whole;
  try {
    /* Kept forever: blocks are freed, and the allocator is called, while the process ends. */
    static const auto *kept = new std::shared_ptr<Whole>(std::make_shared<Whole>());
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(*kept);
    c10::SetAllocator(c10::DeviceType::CUDA, kept->get());
    cachalot_torch::follow_settings();
    return nullptr;
  } catch (const std::exception &error) {
    static const std::string text = error.what();
    return text.c_str();
  }
}
