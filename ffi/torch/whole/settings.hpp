/*
 * Settings between PyTorch and the library, in both directions.
 */
#pragma once

#include "library.hpp"

#include <c10/cuda/CUDAAllocatorConfig.h>

#include <cstdlib>
#include <limits>

namespace cachalot_torch {

/* The active settings, as a text of keys and values. */
inline std::string settings(DeviceIndex device) {
  size_t length = 0;
  require(cachalot_get_config(handle(), device, nullptr, 0, &length));
  std::string text(length + 1, '\0');
  require(cachalot_get_config(handle(), device, text.data(), text.size(), &length));
  text.resize(length);
  return text;
}

/* The value of a key in a text of settings; "" without the key. */
inline std::string setting(const std::string &text, const std::string &key) {
  for (size_t begin = 0; begin < text.size();) {
    int depth = 0;
    size_t end = begin;
    for (; end < text.size() && (depth > 0 || text[end] != ','); ++end) {
      depth += text[end] == '[' ? 1 : text[end] == ']' ? -1 : 0;
    }
    if (text.compare(begin, key.size() + 1, key + ":") == 0) {
      return text.substr(begin + key.size() + 1, end - begin - key.size() - 1);
    }
    begin = end + 1;
  }
  return "";
}

/* The divisions of each doubling from 1 MiB to 64 GiB, from a number or a list such as "[64:8,>:1]": the first entry
 * also holds for the doublings before its own, and ">" for all after the last. */
inline std::vector<size_t> divisions(const std::string &value) {
  constexpr size_t doublings = 16;
  if (value.empty() || value.front() != '[') {
    return std::vector<size_t>(doublings, value.empty() ? 0 : std::strtoull(value.c_str(), nullptr, 10));
  }
  std::vector<size_t> divisions(doublings, 0);
  size_t next = 0;
  for (const char *at = value.c_str() + 1; *at != '\0' && *at != ']';) {
    char *rest = nullptr;
    const bool others = *at == '>';
    const size_t mebibytes = others ? 0 : std::strtoull(at, &rest, 10);
    at = (others ? at + 1 : rest) + 1;
    const size_t count = std::strtoull(at, &rest, 10);
    at = rest + (*rest == ',' ? 1 : 0);
    size_t last = doublings - 1;
    if (!others) {
      last = 0;
      while (last + 1 < doublings && (size_t{2} << last) <= mebibytes) {
        ++last;
      }
    }
    const size_t first = others || next > 0 ? (others ? next : last) : 0;
    for (size_t doubling = first; doubling <= last; ++doubling) {
      divisions[doubling] = count;
    }
    next = last + 1;
  }
  return divisions;
}

/* The settings as PyTorch's snapshots show them. Pinned memory is PyTorch's own. */
inline interface::AllocatorConfigInfo describe_settings() {
  using Config = interface::CUDAAllocatorConfig;
  const std::string text = settings(0);
  const std::string threshold = setting(text, "garbage_collection_threshold");
  const std::string split = setting(text, "max_split_size_mb");
  interface::AllocatorConfigInfo info{};
  info.garbage_collection_threshold = std::strtod(threshold.c_str(), nullptr);
  info.max_split_size =
      split.empty() ? std::numeric_limits<size_t>::max() : std::strtoull(split.c_str(), nullptr, 10) << 20;
  info.pinned_num_register_threads = Config::pinned_num_register_threads();
  info.expandable_segments = setting(text, "expandable_segments") == "True";
  info.release_lock_on_malloc = setting(text, "release_lock_on_cudamalloc") == "True";
  info.pinned_use_host_register = Config::pinned_use_cuda_host_register();
#if CACHALOT_TORCH >= 209
  info.graph_capture_record_stream_reuse = setting(text, "graph_capture_record_stream_reuse") == "True";
#endif
#if CACHALOT_TORCH >= 213
  using Accelerator = c10::CachingAllocator::AcceleratorAllocatorConfig;
  info.max_round_threshold = Accelerator::pinned_max_round_threshold();
  info.max_cached_size = Accelerator::pinned_max_cached_size();
#endif
  info.last_allocator_settings = text;
  info.roundup_power2_divisions = divisions(setting(text, "roundup_power2_divisions"));
  return info;
}

/* Passes the settings that the program gives to PyTorch to the library as well. PyTorch checks them first. Before 2.10,
 * PyTorch offers no such hook. */
inline void follow_settings() {
#if CACHALOT_TORCH >= 210
  /* Replaces PyTorch's hook for CUDA's settings, which is the first call here. No key is new. */
  const auto parse = [](const std::string &text) {
    interface::CUDAAllocatorConfig::instance().parseArgs(text);
    TORCH_CHECK_VALUE(cachalot_torch_configure(text.c_str()) == CACHALOT_OK, cachalot_last_error());
  };
  c10::CachingAllocator::AcceleratorAllocatorConfig::registerDeviceConfigParserHook(parse, {});
#endif
}

}  // namespace cachalot_torch
