/**
 * @file cachalot/failures.hpp
 * Failures in destructors, where nothing can be thrown: a handler receives them.
 */
#include "../cachalot.hpp" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_FAILURES_HPP
#define CACHALOT_FAILURES_HPP

#include <atomic>
#include <cstddef>

namespace cachalot {

/** A failure where no exception can be thrown: in a destructor, in block::reset, or in a resource's deallocate. */
struct failure {
  cachalot_status status; /**< The status of the C function. */
  const char* text;  /**< The message of cachalot_last_error, valid until the handler returns or a call in it fails. */
  const void* data;  /**< The address of the block that was not freed, or null. */
  std::size_t bytes; /**< The size of this block, or 0. */
};

/** A function that receives failures. It may run on several threads at the same time. */
using failure_handler = void (*)(const failure&) noexcept;

namespace detail {

inline std::atomic<failure_handler> handler{nullptr};

/** Reports a status other than CACHALOT_OK to the handler, if there is one. */
inline void report(cachalot_status status, const void* data = nullptr, std::size_t bytes = 0) noexcept {
  if (status == CACHALOT_OK) {
    return;
  }
  if (const failure_handler current = handler.load(std::memory_order_acquire)) {
    current(failure{status, cachalot_last_error(), data, bytes});
  }
}
}  // namespace detail

/**
 * Sets the handler of failures that cannot be thrown, and returns the previous handler. Null, the default, ignores such
 * failures: the block then stays allocated until the allocator is destroyed.
 *
 * The handler belongs to the whole program, like `std::set_terminate`. It runs on the thread of the failed call, with
 * no lock held, and may call cachalot. Any thread may set a handler at any time; a call under way may still run the
 * previous handler.
 */
inline failure_handler set_failure_handler(failure_handler wanted) noexcept {
  return detail::handler.exchange(wanted, std::memory_order_acq_rel);
}

}  // namespace cachalot

#endif
