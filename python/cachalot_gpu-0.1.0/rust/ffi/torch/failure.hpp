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

namespace {

/* The calling thread's last error, as an exception. */
[[noreturn]] void fail(cachalot_status status) {
  const std::string text = cachalot_last_error();
#ifdef CACHALOT_WITH_TORCH
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  if (status == CACHALOT_ERROR_OUT_OF_MEMORY || status == CACHALOT_ERROR_REJECTED ||
      status == CACHALOT_ERROR_TOO_LARGE) {
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
