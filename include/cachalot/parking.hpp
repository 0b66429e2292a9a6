/**
 * @file cachalot/parking.hpp
 * Memory that the program does not need for a while: it goes back to the driver, and wakes at the
 * same addresses, with its contents.
 */
#include "../cachalot.hpp" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_PARKING_HPP
#define CACHALOT_PARKING_HPP

namespace cachalot {

/** The memory of every pool with a tag, for allocator::park. */
inline cachalot_park_target park_tag(std::uint64_t tag) noexcept {
  return {sizeof(cachalot_park_target), tag, nullptr, CACHALOT_PARK_TAG, 0};
}

/** The memory of a stream in the default pool, for allocator::park. */
inline cachalot_park_target park_stream(cachalot_stream stream) noexcept {
  return {sizeof(cachalot_park_target), 0, stream, CACHALOT_PARK_STREAM, 0};
}

inline void allocator::park(const cachalot_park_target& target, const cachalot_park_options& options,
                            int device) const {
  check(cachalot_park(get(), device, &target, &options));
}

inline void allocator::wake(const cachalot_park_target& target, int device) const {
  check(cachalot_wake(get(), device, &target));
}

inline void allocator::wake_start(const cachalot_park_target& target, int device) const {
  check(cachalot_wake_start(get(), device, &target));
}

inline void allocator::wake_wait(const cachalot_park_target& target, int device) const {
  check(cachalot_wake_wait(get(), device, &target));
}

inline cachalot_park_report allocator::park_report(const cachalot_park_target& target, int device) const {
  cachalot_park_report report = CACHALOT_PARK_REPORT_INIT;
  check(cachalot_get_park_report(get(), device, &target, &report));
  return report;
}

inline void allocator::lend(std::uint64_t tag, int device) const { check(cachalot_tag_lend(get(), device, tag)); }

inline void allocator::reclaim(std::uint64_t tag, cachalot_stream stream, int device) const {
  check(cachalot_tag_reclaim(get(), device, tag, stream));
}

inline void allocator::set_tag_fallback(std::uint64_t tag, bool on, int device) const {
  check(cachalot_tag_set_fallback(get(), device, tag, on ? 1 : 0));
}

inline cachalot_remaining_memory allocator::remaining_memory(int device) const {
  cachalot_remaining_memory memory = CACHALOT_REMAINING_MEMORY_INIT;
  check(cachalot_get_remaining_memory(get(), device, &memory));
  return memory;
}

inline void allocator::retain_host_memory(std::uint64_t host_bytes, int device) const {
  check(cachalot_retain_host_memory(get(), device, host_bytes));
}

}  // namespace cachalot

#endif
