/**
 * @file cachalot/cache.hpp
 * The memory that the allocator holds from the driver: its release, its limits, its upkeep, and
 * what happens when memory is short.
 */
#include "../cachalot.hpp" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_CACHE_HPP
#define CACHALOT_CACHE_HPP

namespace cachalot {

namespace detail {

inline int ask(void* userdata, int device, std::size_t bytes) noexcept {
  try {
    return (*static_cast<std::function<bool(int, std::size_t)>*>(userdata))(device, bytes);
  } catch (...) {
    return 0;
  }
}

inline void tell(void* userdata, const cachalot_oom_report* report) noexcept {
  try {
    (*static_cast<std::function<void(const cachalot_oom_report&)>*>(userdata))(*report);
  } catch (...) {
    // The request fails in any case, with its own report.
  }
}

}  // namespace detail

inline void allocator::process_events(int device) const {
  check(cachalot_process_events(get(), device));
}

inline void allocator::empty_cache(int device) const {
  check(cachalot_empty_cache(get(), device));
}

inline void allocator::trim(std::size_t keep_bytes, int device) const {
  check(cachalot_trim(get(), device, keep_bytes));
}

/** Holds the frees of the driver off for as long as the object lives, as around the launches of a collective. */
class hold_scope {
 public:
  /** Begins a hold on a device. */
  explicit hold_scope(const allocator& owner, int device = 0) : allocator_(owner.get()), device_(device) {
    check(cachalot_hold_begin(allocator_, device_));
  }
  hold_scope(const hold_scope&) = delete;
  hold_scope& operator=(const hold_scope&) = delete;
  ~hold_scope() { detail::report(cachalot_hold_end(allocator_, device_)); }

 private:
  const cachalot_allocator* allocator_;
  int device_;
};

inline bool allocator::maintain(std::uint64_t max_us, int device) const {
  int more = 0;
  check(cachalot_maintain(get(), device, max_us, &more));
  return more != 0;
}

inline void allocator::maintain_every(std::uint64_t interval_us, std::uint64_t max_us) const {
  check(cachalot_maintain_every(get(), interval_us, max_us));
}

inline cachalot_reclaim_statistics allocator::reclaim_statistics(int device) const {
  cachalot_reclaim_statistics reclaimed = CACHALOT_RECLAIM_STATISTICS_INIT;
  check(cachalot_get_reclaim_statistics(get(), device, &reclaimed));
  return reclaimed;
}

inline void allocator::set_caching(bool on, int device) const {
  check(cachalot_set_caching(get(), device, on));
}

inline void allocator::set_limit(std::uint64_t bytes, int device) const {
  check(cachalot_set_limit(get(), device, bytes));
}

inline void allocator::set_memory_fraction(double fraction, int device) const {
  check(cachalot_set_memory_fraction(get(), device, fraction));
}

inline void allocator::on_shortage(std::function<bool(int, std::size_t)> callback) {
  auto kept = std::make_unique<shortage>(std::move(callback));
  check(cachalot_on_shortage(get(), *kept ? &detail::ask : nullptr, kept.get()));
  shortage_ = std::move(kept);
}

inline void allocator::on_out_of_memory(std::function<void(const cachalot_oom_report&)> callback) {
  auto kept = std::make_unique<oom>(std::move(callback));
  check(cachalot_on_out_of_memory(get(), *kept ? &detail::tell : nullptr, kept.get()));
  oom_ = std::move(kept);
}

}  // namespace cachalot

#endif
