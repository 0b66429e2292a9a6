/**
 * @file cachalot/plan.hpp
 * Plans of repeated iterations, settings that adjust themselves, and predictions of requests.
 */
#include "../cachalot.hpp" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_PLAN_HPP
#define CACHALOT_PLAN_HPP

namespace cachalot {

inline cachalot_forecast allocator::forecast(std::size_t bytes, cachalot_stream stream, int device) const {
  cachalot_forecast outlook = CACHALOT_FORECAST_INIT;
  check(cachalot_get_forecast(get(), device, bytes, stream, &outlook));
  return outlook;
}

inline cachalot_fit allocator::fit(const std::vector<std::size_t>& sizes, cachalot_stream stream, int device) const {
  cachalot_fit fit = CACHALOT_FIT_INIT;
  check(cachalot_get_fit(get(), device, sizes.data(), sizes.size(), stream, &fit));
  return fit;
}

inline void allocator::begin_iteration(int device) const {
  check(cachalot_begin_iteration(get(), device));
}

inline void allocator::end_plans(int device) const {
  check(cachalot_end_plans(get(), device));
}

inline cachalot_plan_report allocator::plan_report(int device) const {
  cachalot_plan_report report = CACHALOT_PLAN_REPORT_INIT;
  check(cachalot_get_plan_report(get(), device, &report));
  return report;
}

inline cachalot_tune_report allocator::tune_report(int device) const {
  cachalot_tune_report report = CACHALOT_TUNE_REPORT_INIT;
  check(cachalot_get_tune_report(get(), device, &report));
  return report;
}

}  // namespace cachalot

#endif
