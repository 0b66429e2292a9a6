/*
 * The history of events that torch.cuda.memory._record_memory_history() asks for, and the trackers of events.
 *
 * The library reports each event under a lock, on the thread that causes it. What PyTorch adds to an event is gathered
 * on that thread before the call: a stack, which may take Python's lock.
 */
#pragma once

#include "library.hpp"
#include "ring.hpp"

#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stack>
#include <unordered_set>

namespace cachalot_torch {

/* The data that the calling thread adds to its events. */
struct OfThread {
  Context context;
  std::stack<std::string> compile_contexts;
  std::string user_metadata;
};

inline OfThread &of_thread() {
  thread_local OfThread state;
  return state;
}

/* The innermost compilation of the calling thread. */
inline std::string compile_context() {
  const auto &contexts = of_thread().compile_contexts;
  return contexts.empty() ? "N/A" : contexts.top();
}

/* A history's arguments, as recordHistory gets them. */
struct Recording {
  CreateContextFn gather = nullptr;
  size_t entries = 1;
  RecordContext when = RecordContext::NEVER;
  std::vector<std::string> skipped;
};

class History {
  /* Locked under the library's locks, so no function of the library is called while it is locked. */
  std::mutex mutex;
  /* Locked while the library is told whether to report events. */
  std::mutex switching;
  bool recording = false;
  Recording recorded;
  std::vector<Ring<TraceEntry>> rings;
  Ring<AnnotationEntry> annotations;
  std::vector<interface::AllocatorTraceTracker> trackers;
  std::unordered_map<uint64_t, Context> blocks;
  /* By the first byte. A segment that was ever split has none: PyTorch's allocator loses the stack at the split. */
  std::unordered_map<uint64_t, Context> segments;
  std::atomic<RecordContext> level{RecordContext::NEVER};
  std::atomic<CreateContextFn> gatherer{nullptr};
  c10::ApproximateClockToUnixTimeConverter clock;

  static void on_event(void *userdata, const cachalot_torch_event *event) {
    static_cast<History *>(userdata)->add(*event);
  }

  void add(const cachalot_torch_event &event);
  Context context_of(const cachalot_torch_event &event);
  Ring<TraceEntry> &ring(DeviceIndex device);
  void push(DeviceIndex device, TraceEntry entry);

 public:
  /* Gathers the calling thread's stack for the events of one call, if the history has stacks for `level`. */
  class Gathered {
    bool set = false;

   public:
    Gathered(History &history, RecordContext level) {
      if (history.level.load(std::memory_order_relaxed) >= level) {
        if (const CreateContextFn gather = history.gatherer.load(std::memory_order_acquire)) {
          of_thread().context = gather();
          set = true;
        }
      }
    }
    Gathered(const Gathered &) = delete;
    Gathered &operator=(const Gathered &) = delete;
    /* Whether the events of the call have a stack. */
    explicit operator bool() const { return set; }
    ~Gathered() {
      if (set) {
        of_thread().context = nullptr;
      }
    }
  };

  /* Starts, changes or ends the recording. */
  void record(bool enabled, Recording arguments, bool clear);
  bool is_recording();
  void annotate(const std::vector<std::pair<std::string, std::string>> &metadata);
  void track(interface::AllocatorTraceTracker tracker);
  /* Reports a block that was allocated: it may have split its segment. */
  void note(const cachalot_block &block);
#if CACHALOT_TORCH >= 214
  /* Adds an entry with a text about a live block. */
  void annotate(const Segment &segment, const cachalot_block &block, const std::string &text);
#endif
  Context of_block(const void *block);
  Context of_segment(const void *base);
  /* The entries of every device, and the annotations. Then adds an entry that marks the snapshot. */
  void read(const std::vector<size_t> &active, bool with_traces, interface::SnapshotInfo &info);

 private:
  void listen();
};

inline TraceEntry::Action action_of(cachalot_action action) {
  switch (action) {
    case CACHALOT_ACTION_ALLOC:
      return TraceEntry::ALLOC;
    case CACHALOT_ACTION_FREE_REQUESTED:
      return TraceEntry::FREE_REQUESTED;
    case CACHALOT_ACTION_FREE_COMPLETED:
      return TraceEntry::FREE_COMPLETED;
    case CACHALOT_ACTION_SEGMENT_ALLOC:
      return TraceEntry::SEGMENT_ALLOC;
    case CACHALOT_ACTION_SEGMENT_FREE:
      return TraceEntry::SEGMENT_FREE;
    case CACHALOT_ACTION_SEGMENT_MAP:
      return TraceEntry::SEGMENT_MAP;
    case CACHALOT_ACTION_SEGMENT_UNMAP:
      return TraceEntry::SEGMENT_UNMAP;
    default:
      return TraceEntry::OOM;
  }
}

inline Ring<TraceEntry> &History::ring(DeviceIndex device) {
  const auto number = static_cast<size_t>(device);
  while (rings.size() <= number) {
    rings.emplace_back().resize(recorded.entries);
  }
  return rings[number];
}

/* Adds an entry, and tells the trackers. The mutex is locked. */
inline void History::push(DeviceIndex device, TraceEntry entry) {
  for (const auto &tracker : trackers) {
    tracker(entry);
  }
  const auto &skipped = recorded.skipped;
  if (recording && std::find(skipped.begin(), skipped.end(), action_name(entry.action_)) == skipped.end()) {
    ring(device).push(std::move(entry));
  }
}

/* The stack of an event, and the stacks of live blocks and segments. The mutex is locked. */
inline Context History::context_of(const cachalot_torch_event &event) {
  const Context &own = of_thread().context;
  switch (event.action) {
    case CACHALOT_ACTION_ALLOC:
      if (own != nullptr) {
        blocks[event.address] = own;
      }
      return own;
    case CACHALOT_ACTION_FREE_REQUESTED: {
      const auto block = blocks.find(event.address);
      return own != nullptr || block == blocks.end() ? own : block->second;
    }
    case CACHALOT_ACTION_FREE_COMPLETED: {
      const auto block = blocks.extract(event.address);
      return own != nullptr || block.empty() ? own : block.mapped();
    }
    case CACHALOT_ACTION_SEGMENT_ALLOC:
      if (own != nullptr) {
        segments[event.address] = own;
      }
      return own;
    case CACHALOT_ACTION_SEGMENT_FREE: {
      const auto segment = segments.extract(event.address);
      return own != nullptr || segment.empty() ? own : segment.mapped();
    }
    default:
      return own;
  }
}

inline void History::add(const cachalot_torch_event &event) {
  const std::lock_guard<std::mutex> lock(mutex);
  Context context = context_of(event);
  if (recorded.when < RecordContext::ALLOC) {
    context = nullptr;
  }
  push(static_cast<DeviceIndex>(event.device),
       trace_entry(action_of(event.action), static_cast<DeviceIndex>(event.device), event.address, event.bytes,
                   stream_handle(event.stream_id), {event.pool.first, event.pool.second}, c10::getApproximateTime(),
                   {std::move(context), compile_context(), of_thread().user_metadata}));
}

/* Lets the library report events exactly while something listens. */
inline void History::listen() {
  const std::lock_guard<std::mutex> order(switching);
  bool needed = false;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    needed = recording || !trackers.empty();
  }
  require(cachalot_torch_on_event(needed ? on_event : nullptr, this));
}

inline void History::record(bool enabled, Recording arguments, bool clear) {
  TORCH_CHECK(!enabled || arguments.when == RecordContext::NEVER || arguments.gather != nullptr,
              "a history with stacks needs a function that gathers them");
  {
    const std::lock_guard<std::mutex> lock(mutex);
    recording = enabled;
    recorded = std::move(arguments);
    if (!enabled) {
      recorded.when = RecordContext::NEVER;
    }
    gatherer.store(enabled ? recorded.gather : nullptr, std::memory_order_release);
    level.store(recorded.when, std::memory_order_relaxed);
    for (auto &ring : rings) {
      ring.resize(recorded.entries);
    }
    annotations.resize(recorded.entries);
    if (!enabled || clear) {
      rings.clear();
      annotations.clear();
    }
    if (!enabled) {
      blocks.clear();
      segments.clear();
    }
  }
  listen();
}

inline bool History::is_recording() {
  const std::lock_guard<std::mutex> lock(mutex);
  return recording;
}

inline void History::annotate(const std::vector<std::pair<std::string, std::string>> &metadata) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!recording) {
    return;
  }
  DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  AnnotationEntry entry(device, c10::getApproximateTime());
  for (const auto &[name, value] : metadata) {
    entry.recordUserMetadata(name, value);
  }
  annotations.push(std::move(entry));
}

inline void History::track(interface::AllocatorTraceTracker tracker) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    trackers.push_back(std::move(tracker));
  }
  listen();
}

#if CACHALOT_TORCH >= 214
inline void History::annotate(const Segment &segment, const cachalot_block &block, const std::string &text) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto device = static_cast<DeviceIndex>(block.device);
  push(device, trace_entry(TraceEntry::ANNOTATE, device, reinterpret_cast<size_t>(block.base), block.bytes,
                           stream_handle(block.stream_id), {segment.head.pool.first, segment.head.pool.second},
                           c10::getApproximateTime(), {of_thread().context, compile_context(), text}));
}
#endif

inline Context History::of_block(const void *block) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = blocks.find(reinterpret_cast<uint64_t>(block));
  return found == blocks.end() ? nullptr : found->second;
}

inline Context History::of_segment(const void *base) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = segments.find(reinterpret_cast<uint64_t>(base));
  return found == segments.end() ? nullptr : found->second;
}

inline void History::note(const cachalot_block &block) {
  if (block.bytes < block.segment_bytes) {
    const std::lock_guard<std::mutex> lock(mutex);
    segments.erase(reinterpret_cast<uint64_t>(block.segment_base));
  }
}

inline void History::read(const std::vector<size_t> &active, bool with_traces, interface::SnapshotInfo &info) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto nanoseconds = clock.makeConverter();
  const auto microseconds = [&](c10::approx_time_t time) { return nanoseconds(time) / 1000; };
  for (size_t number = 0; number < active.size(); ++number) {
    const auto device = static_cast<DeviceIndex>(number);
    auto &entries = info.device_traces.emplace_back();
    if (with_traces) {
      entries = ring(device).copy();
      for (auto &entry : entries) {
        entry.time_.t_ = microseconds(entry.time_.approx_t_);
      }
    }
    /* The next snapshot shows when this one was taken. */
    if (recording || !trackers.empty()) {
      push(device, trace_entry(TraceEntry::SNAPSHOT, device, 0, active[number], nullptr, {0, 0},
                               c10::getApproximateTime(), {nullptr, "N/A", of_thread().user_metadata}));
    }
  }
  if (with_traces) {
    info.external_annotations = annotations.copy();
    for (auto &entry : info.external_annotations) {
      entry.time_.t_ = microseconds(entry.time_.approx_t_);
    }
  }
}

}  // namespace cachalot_torch
