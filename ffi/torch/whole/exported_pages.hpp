/*
 * The sender's side of shared blocks of pages: blocks of expandable and stitched segments.
 */
#pragma once

#include "../failure.hpp"
#include "page_handle.hpp"

#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <random>
#include <unordered_map>

#include <fcntl.h>
#include <unistd.h>

namespace cachalot_torch {

/* A pinned block, and a descriptor of each page under the block. */
class ExportedBlock {
  const cachalot_allocator *allocator;
  const void *block;
  std::vector<int> descriptors;

  /* The driver does not say that the process may open no more files, of which an export needs two for a moment. */
  static void require_room() {
    int ends[2];
    if (pipe(ends) == 0) {
      static_cast<void>(close(ends[0]));
      static_cast<void>(close(ends[1]));
    } else if (errno == EMFILE) {
      throw std::runtime_error(
          "each page of memory shared with another process needs a file descriptor, and this "
          "process may open no more: raise the limit (ulimit -n)");
    }
  }

 public:
  ExportedBlock(const cachalot_allocator *from, const void *pinned) : allocator(from), block(pinned) {
    require(cachalot_pin(allocator, block));
  }
  ExportedBlock(const ExportedBlock &) = delete;
  ExportedBlock &operator=(const ExportedBlock &) = delete;
  /* Fails in a forked child, which has copies of the descriptors and no pins. */
  ~ExportedBlock() {
    for (const int descriptor : descriptors) {
      static_cast<void>(close(descriptor));
    }
    static_cast<void>(cachalot_unpin(allocator, block));
  }

  /* Exports the page under the byte at `offset`. The descriptor belongs to this object. */
  int export_page(uint64_t offset) {
    int descriptor = -1;
    descriptors.push_back(-1);
    const cachalot_status exported =
        cachalot_export_fd(allocator, static_cast<const char *>(block) + offset, &descriptor);
    if (exported != CACHALOT_OK) {
      require_room();
      fail(exported);
    }
    descriptors.back() = descriptor;
    /* A program that this process starts would keep the page in use. */
    static_cast<void>(fcntl(descriptor, F_SETFD, FD_CLOEXEC));
    return descriptor;
  }
};

/* The blocks that this process shares. Each is pinned once and has one handle, however often it is shared. */
class ExportedPages {
  struct Entry {
    std::unique_ptr<ExportedBlock> block;
    std::string handle;
  };
  std::mutex mutex;
  std::unordered_map<const void *, Entry> blocks;
  /* The number of blocks. A program that shares none takes no lock. */
  std::atomic<size_t> count{0};
  uint64_t origin = 0, shared = 0;

  static std::vector<cachalot_extent> extents_of(const cachalot_allocator *allocator, const void *block) {
    size_t found = 0;
    require(cachalot_get_extents(allocator, block, nullptr, &found));
    std::vector<cachalot_extent> extents(found);
    require(cachalot_get_extents(allocator, block, extents.data(), &found));
    return extents;
  }

  PageHandle number_handle(uint64_t offset) {
    if (origin == 0) {
      std::random_device random;
      origin = (uint64_t{random()} << 32 | random()) | 1;
    }
    return {getpid(), origin, ++shared, offset, {}};
  }

 public:
  /* Returns the handle of a live block, which stays pinned until `forget`; "" if the block is in an ordinary
   * segment. */
  std::string share(const cachalot_allocator *allocator, const void *block) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto known = blocks.find(block);
    if (known != blocks.end()) {
      return known->second.handle;
    }
    const std::vector<cachalot_extent> extents = extents_of(allocator, block);
    if (extents.front().flags & CACHALOT_EXTENT_SEGMENT) {
      return "";
    }
    auto exported = std::make_unique<ExportedBlock>(allocator, block);
    PageHandle handle = number_handle(extents.front().memory_offset);
    for (const cachalot_extent &extent : extents) {
      handle.pages.push_back({extent.memory_bytes, exported->export_page(extent.offset)});
    }
    const std::string &text = (blocks[block] = {std::move(exported), handle.text()}).handle;
    count.store(blocks.size(), std::memory_order_release);
    return text;
  }

  /* Ends the sharing of a block that is about to be freed. Does nothing for any other address. */
  void forget(const void *block) {
    if (count.load(std::memory_order_acquire) == 0) {
      return;
    }
    Entry ended;
    const std::lock_guard<std::mutex> lock(mutex);
    const auto known = blocks.find(block);
    if (known != blocks.end()) {
      ended = std::move(known->second);
      blocks.erase(known);
      count.store(blocks.size(), std::memory_order_release);
    }
  }
};

}  // namespace cachalot_torch
