/*
 * Statuses of the library as exceptions: PyTorch's own with -DCACHALOT_WITH_TORCH, otherwise std::runtime_error.
 */
#pragma once

#include "cachalot_torch.h"

#include <string>

#ifdef CACHALOT_WITH_TORCH
#include <c10/util/Exception.h>
#else
#include <stdexcept>
#endif

#ifdef CACHALOT_WITH_TORCH
namespace cachalot_torch {

/* The memory limit forbids a request, and `throw_on_cudamalloc_oom` forbids to release memory for it. To PyTorch,
 * memory has run out. */
struct Rejected final : c10::OutOfMemoryError {
  using c10::OutOfMemoryError::OutOfMemoryError;
};

}  // namespace cachalot_torch
#endif

namespace {

/* The calling thread's last error, as an exception. */
[[noreturn]] void fail(cachalot_status status) {
  const std::string text = cachalot_last_error();
#ifdef CACHALOT_WITH_TORCH
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  if (status == CACHALOT_ERROR_REJECTED) {
    throw cachalot_torch::Rejected(here, text);
  }
  if (status == CACHALOT_ERROR_OUT_OF_MEMORY || status == CACHALOT_ERROR_TOO_LARGE) {
    throw c10::OutOfMemoryError(here, text);
  }
  throw c10::Error(here, text);
#else
  static_cast<void>(status);
  throw std::runtime_error(text);
#endif
}

/* Throws the calling thread's last error unless the call succeeded. */
inline void require(cachalot_status status) {
  if (status != CACHALOT_OK) {
    fail(status);
  }
}

}  // namespace
