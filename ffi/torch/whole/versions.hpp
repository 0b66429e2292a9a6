/*
 * PyTorch's interface of CUDA allocators, under names that every supported version of PyTorch has.
 */
#pragma once

#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/csrc/api/include/torch/version.h>
#endif

/* The installed version as one number: 211 is 2.11. */
#define CACHALOT_TORCH (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)

#if CACHALOT_TORCH < 206 || CACHALOT_TORCH > 215
#error "the whole allocator is written for PyTorch 2.6 to 2.15"
#endif

#include <c10/cuda/CUDACachingAllocator.h>

namespace cachalot_torch {

namespace interface = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::cuda::MempoolId_t;
using interface::BlockInfo;
using interface::CreateContextFn;
using interface::RecordContext;
using interface::SegmentInfo;
using interface::TraceEntry;
#if CACHALOT_TORCH >= 211
using c10::CachingDeviceAllocator::AnnotationEntry;
#else
using interface::AnnotationEntry;
#endif
using Context = std::shared_ptr<c10::GatheredContext>;

/* The names by which skip_actions leaves events out. */
inline const char *action_name(TraceEntry::Action action) {
  constexpr const char *names[] = {"alloc",       "free_requested", "free_completed", "segment_alloc", "segment_free",
                                   "segment_map", "segment_unmap",  "snapshot",       "oom",           "annotate"};
  return names[static_cast<size_t>(action)];
}

/* The data of a trace entry besides the event itself. Versions before 2.8 have neither pools nor texts there, and 2.8 and
 * 2.9 have no metadata. */
struct Marks {
  Context context;
  std::string compile_context;
  std::string user_metadata;
};

inline TraceEntry trace_entry(TraceEntry::Action action, DeviceIndex device, size_t address, size_t bytes,
                              cudaStream_t stream, MempoolId_t pool, c10::approx_time_t time, Marks marks) {
#if CACHALOT_TORCH >= 210
  return TraceEntry(action, device, address, bytes, stream, pool, time, std::move(marks.context),
                    std::move(marks.compile_context), std::move(marks.user_metadata));
#elif CACHALOT_TORCH >= 208
  return TraceEntry(action, device, address, bytes, stream, pool, time, std::move(marks.context),
                    std::move(marks.compile_context));
#else
  static_cast<void>(pool);
  return TraceEntry(action, device, address, bytes, stream, time, std::move(marks.context));
#endif
}

}  // namespace cachalot_torch
