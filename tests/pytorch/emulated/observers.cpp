/*
 * Parts of PyTorch's interface of allocators that Python does not reach, for test_interface.py. PyTorch 2.11 has none.
 */
#include "whole/versions.hpp"

#if CACHALOT_TORCH >= 212
namespace interface = c10::cuda::CUDACachingAllocator;

/* Lets the latest rejected request be written to `told`: device, requested bytes, reserved bytes, bytes of the device. */
extern "C" void observe_rejections(int64_t *told) {
  interface::attachOomRejectionObserver([told](int64_t device, size_t bytes, size_t reserved, size_t total) {
    told[0] = device;
    told[1] = static_cast<int64_t>(bytes);
    told[2] = static_cast<int64_t>(reserved);
    told[3] = static_cast<int64_t>(total);
  });
}

/* Whether the allocator knows the stack of the block at an address. */
extern "C" int has_stack(const void *address) {
  return interface::getContextForPointer(address) != nullptr ? 1 : 0;
}
#endif
