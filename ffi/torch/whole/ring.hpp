/*
 * The latest values of a sequence, for histories of events.
 */
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace cachalot_torch {

/* The latest values, up to a number that may change. */
template <typename Value>
class Ring {
  std::vector<Value> values;
  size_t oldest = 0;
  size_t capacity = 1;

 public:
  void clear() {
    values.clear();
    oldest = 0;
  }

  /* Changes the capacity. A smaller ring loses its oldest values. */
  void resize(size_t most) {
    std::rotate(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(oldest), values.end());
    oldest = 0;
    capacity = std::max<size_t>(most, 1);
    if (values.size() > capacity) {
      values.erase(values.begin(), values.end() - static_cast<std::ptrdiff_t>(capacity));
    }
  }

  void push(Value value) {
    if (values.size() < capacity) {
      values.push_back(std::move(value));
    } else {
      values[oldest] = std::move(value);
      oldest = (oldest + 1) % capacity;
    }
  }

  /* Copies the values, oldest first. */
  std::vector<Value> copy() const {
    std::vector<Value> all(values.begin() + static_cast<std::ptrdiff_t>(oldest), values.end());
    all.insert(all.end(), values.begin(), values.begin() + static_cast<std::ptrdiff_t>(oldest));
    return all;
  }
};

}  // namespace cachalot_torch
