/**
 * @file cachalot/ranges.hpp
 * Elastic ranges: tables and caches that grow in place.
 */
#include "../cachalot.hpp" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_RANGES_HPP
#define CACHALOT_RANGES_HPP

#include <utility>

namespace cachalot {

/**
 * An elastic range: addresses that the program fills with memory part by part, for a table or a KV cache that grows in
 * place. The destructor releases the range after the current work of all its streams.
 *
 * Offsets and sizes are in bytes, and multiples of page_bytes(). cachalot_range_commit has the rules of stream order.
 */
class range {
 public:
  /** Makes an object without a range. */
  range() noexcept = default;
  /** Reserves addresses for `max_bytes` on a device, rounded up to whole pages. */
  range(const allocator& owner, std::size_t max_bytes, int device = 0) {
    check(cachalot_range_reserve(owner.get(), device, max_bytes, &range_));
  }
  /** Takes over the range of another object. */
  range(range&& other) noexcept : range_(std::exchange(other.range_, cachalot_range{})) {}
  /** Releases the range, then takes over the range of another object. */
  range& operator=(range&& other) noexcept {
    range moved(std::move(other));
    std::swap(range_, moved.range_);
    return *this;
  }
  ~range() { reset(); }

  /** The address of the first byte, or null without a range. */
  void* data() const noexcept { return range_.base; }
  /** The address as a pointer to T. */
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(range_.base);
  }
  /** The reserved bytes. */
  std::size_t size() const noexcept { return range_.bytes; }
  /** The bytes of a page. */
  std::size_t page_bytes() const noexcept { return range_.page_bytes; }
  /** The range for the C functions. */
  cachalot_range get() const noexcept { return range_; }
  /** Whether the object has a range. */
  explicit operator bool() const noexcept { return range_.base != nullptr; }

  /** Gives a part memory, which later work on `stream` may use. */
  void commit(std::size_t offset, std::size_t bytes, cachalot_stream stream) const {
    check(cachalot_range_commit(range_, offset, bytes, stream));
  }
  /** Gives up the memory of a part, after the current work of `stream`. */
  void decommit(std::size_t offset, std::size_t bytes, cachalot_stream stream) const {
    check(cachalot_range_decommit(range_, offset, bytes, stream));
  }

  /** Releases the range now. A failure goes to the failure handler. */
  void reset() noexcept {
    const cachalot_range released = std::exchange(range_, cachalot_range{});
    if (released.allocator != nullptr) {
      detail::report(cachalot_range_release(released), released.base, released.bytes);
    }
  }

 private:
  cachalot_range range_{};
};

}  // namespace cachalot

#endif
