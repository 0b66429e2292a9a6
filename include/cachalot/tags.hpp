/**
 * @file cachalot/tags.hpp
 * Limits and memory of tags, which are names of private pools.
 */
#include "../cachalot.hpp" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_TAGS_HPP
#define CACHALOT_TAGS_HPP

namespace cachalot {

inline void allocator::set_tag_limits(std::uint64_t tag, const cachalot_tag_limits& limits, int device) const {
  check(cachalot_tag_set_limits(get(), device, tag, &limits));
}

inline void allocator::remove_tag_limits(std::uint64_t tag, int device) const {
  check(cachalot_tag_set_limits(get(), device, tag, nullptr));
}

inline void allocator::trim_tag(std::uint64_t tag, std::size_t keep_bytes, int device) const {
  check(cachalot_tag_trim(get(), device, tag, keep_bytes));
}

inline cachalot_tag_report allocator::tag_report(std::uint64_t tag, int device) const {
  cachalot_tag_report report = CACHALOT_TAG_REPORT_INIT;
  check(cachalot_get_tag_report(get(), device, tag, &report));
  return report;
}

}  // namespace cachalot

#endif
