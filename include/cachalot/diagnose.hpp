/**
 * @file cachalot/diagnose.hpp
 * What happened, and why: statistics by name, metrics, traces with call stacks, snapshots,
 * addresses at which kernels fault.
 */
#include "../cachalot.hpp" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_DIAGNOSE_HPP
#define CACHALOT_DIAGNOSE_HPP

#include <exception>
#include <utility>

namespace cachalot {

namespace detail {

// What a callback gathers, and the exception that it must not throw across the C function.
template <class T>
struct collected {
  T value;
  std::exception_ptr thrown;

  template <class Add>
  int add(Add&& add_to) noexcept {
    try {
      add_to(value);
      return 0;
    } catch (...) {
      thrown = std::current_exception();
      return 1;
    }
  }

  void check(cachalot_status status) const {
    if (thrown) {
      std::rethrow_exception(thrown);
    }
    cachalot::check(status);
  }
};

inline void describe(void* userdata, cachalot_stack* stack, cachalot_action action) noexcept {
  try {
    (*static_cast<std::function<void(cachalot_stack*, cachalot_action)>*>(userdata))(stack, action);
  } catch (...) {
    // The frames before the exception count.
  }
}

inline int collect_entry(void* userdata, const cachalot_trace_entry* entry) noexcept {
  auto& entries = *static_cast<collected<std::vector<cachalot_trace_entry>>*>(userdata);
  return entries.add([entry](auto& value) { value.push_back(*entry); });
}

inline int collect_stat(void* userdata, const char* key, std::int64_t value) noexcept {
  auto& list = *static_cast<collected<std::vector<std::pair<std::string, std::int64_t>>>*>(userdata);
  return list.add([key, value](auto& values) { values.emplace_back(key, value); });
}

inline int collect_text(void* userdata, const char* text, std::size_t bytes) noexcept {
  auto& whole = *static_cast<collected<std::string>*>(userdata);
  return whole.add([text, bytes](auto& value) { value.append(text, bytes); });
}

}  // namespace detail

inline std::string allocator::explain_address(const void* address) const {
  return detail::text_of([this, address](char* text, std::size_t size, std::size_t* length) {
    return cachalot_explain_address(get(), address, text, size, length);
  });
}

inline std::int64_t allocator::find_statistic(const std::string& key, int device) const {
  std::int64_t value = 0;
  check(cachalot_find_statistic(get(), device, key.c_str(), &value));
  return value;
}

inline std::vector<std::pair<std::string, std::int64_t>> allocator::statistics_by_name(int device) const {
  detail::collected<std::vector<std::pair<std::string, std::int64_t>>> list;
  list.check(cachalot_visit_statistics(get(), device, &detail::collect_stat, &list));
  return std::move(list.value);
}

inline void allocator::reset_peaks(int device) const {
  check(cachalot_reset_peaks(get(), device));
}

inline void allocator::reset_accumulated(int device) const {
  check(cachalot_reset_accumulated(get(), device));
}

inline void allocator::on_stack(std::function<void(cachalot_stack*, cachalot_action)> callback) {
  auto kept = std::make_unique<describer>(std::move(callback));
  check(cachalot_on_stack(get(), *kept ? &detail::describe : nullptr, kept.get()));
  describer_ = std::move(kept);
}

inline void allocator::trace_start(std::size_t capacity, int device) const {
  check(cachalot_trace_start(get(), device, capacity));
}

inline void allocator::recorder_start(const std::string& options) const {
  check(cachalot_recorder_start(get(), options.c_str()));
}

inline std::vector<cachalot_trace_entry> allocator::trace(int device) const {
  detail::collected<std::vector<cachalot_trace_entry>> entries;
  entries.check(cachalot_visit_trace(get(), device, &detail::collect_entry, &entries));
  return std::move(entries.value);
}

inline std::string allocator::metrics() const {
  detail::collected<std::string> text;
  text.check(cachalot_write_metrics(get(), &detail::collect_text, &text));
  return std::move(text.value);
}

inline std::string allocator::snapshot(cachalot_format format) const {
  detail::collected<std::string> text;
  cachalot_snapshot_options options = CACHALOT_SNAPSHOT_OPTIONS_INIT;
  options.format = format;
  text.check(cachalot_snapshot(get(), &options, &detail::collect_text, &text));
  return std::move(text.value);
}

inline void allocator::snapshot(const std::string& path) const {
  cachalot_snapshot_options options = CACHALOT_SNAPSHOT_OPTIONS_INIT;
  options.path = path.c_str();
  check(cachalot_snapshot(get(), &options, nullptr, nullptr));
}

}  // namespace cachalot

#endif
