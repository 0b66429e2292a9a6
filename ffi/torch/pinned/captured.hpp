/*
 * Blocks that were requested while a graph was captured. A replay of the graph copies from and to them again, so a
 * block that was used is kept until the graph's pool is released.
 */
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cachalot_torch {

/* Pool is the name of a pool, Stream a stream of PyTorch. */
template <typename Pool, typename Stream>
class Captured {
  struct Block {
    Pool pool;
    bool used;
  };
  struct Kept {
    int users = 0;
    std::vector<void *> blocks;
  };

  std::mutex mutex;
  /* Captures under way, and what tells their streams. */
  std::vector<std::pair<Pool, std::function<bool(Stream)>>> captures;
  std::map<Pool, Kept> pools;
  std::unordered_map<void *, Block> live;
  /* Used blocks of released pools. */
  std::vector<void *> released;
  /* Not 0 while a capture is under way, or a block is live. Programs without captures take no lock. */
  std::atomic<size_t> entries{0};

  void count() { entries.store(captures.size() + live.size(), std::memory_order_release); }
  bool any() const { return entries.load(std::memory_order_acquire) > 0; }

 public:
  /* Routes the requests of a capture into a pool, and adds a user to the pool. Returns false if a capture uses it. */
  bool begin(const Pool &pool, std::function<bool(Stream)> filter) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto same = [&](const auto &capture) { return capture.first == pool; };
    if (std::any_of(captures.begin(), captures.end(), same)) {
      return false;
    }
    ++pools[pool].users;
    captures.emplace_back(pool, std::move(filter));
    count();
    return true;
  }

  /* Ends a route. Returns false if there is none. */
  bool end(const Pool &pool) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto same = [&](const auto &capture) { return capture.first == pool; };
    const auto found = std::find_if(captures.begin(), captures.end(), same);
    if (found == captures.end()) {
      return false;
    }
    captures.erase(found);
    count();
    return true;
  }

  /* Removes a user of a pool. Returns false if the pool has none. */
  bool release(const Pool &pool) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = pools.find(pool);
    if (found == pools.end()) {
      return false;
    }
    if (--found->second.users == 0) {
      released.insert(released.end(), found->second.blocks.begin(), found->second.blocks.end());
      pools.erase(found);
    }
    return true;
  }

  /* Notes a new block, requested while `stream` was current, and returns the pool that it belongs to: Pool{} outside of
   * a capture. The stream is asked for only during a capture. */
  Pool note(void *block, const std::function<Stream()> &stream) {
    if (!any()) {
      return Pool{};
    }
    const std::lock_guard<std::mutex> lock(mutex);
    for (const auto &[pool, filter] : captures) {
      if (filter(stream())) {
        live.insert_or_assign(block, Block{pool, false});
        count();
        return pool;
      }
    }
    return Pool{};
  }

  /* Notes a use of a block, and returns true. Returns false for a block that was not requested in a capture. */
  bool use(void *block) {
    if (!any()) {
      return false;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = live.find(block);
    if (found == live.end()) {
      return false;
    }
    found->second.used = true;
    return true;
  }

  /* Takes a block over that the program frees, if a graph may use it. Returns false if the block is to be freed. */
  bool keep(void *block) {
    if (!any()) {
      return false;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = live.find(block);
    if (found == live.end()) {
      return false;
    }
    const Block its = found->second;
    live.erase(found);
    count();
    if (its.used) {
      const auto pool = pools.find(its.pool);
      (pool == pools.end() ? released : pool->second.blocks).push_back(block);
    }
    return its.used;
  }

  /* The used blocks of released pools, which nothing else frees. Empty while a graph is captured. */
  std::vector<void *> take_released() {
    const std::lock_guard<std::mutex> lock(mutex);
    return captures.empty() ? std::exchange(released, {}) : std::vector<void *>();
  }
};

}  // namespace cachalot_torch
