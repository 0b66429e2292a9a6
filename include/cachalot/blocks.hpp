/**
 * @file cachalot/blocks.hpp
 * The block of an address, its physical pages, and pages that other processes use.
 */
#include "../cachalot.hpp" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_BLOCKS_HPP
#define CACHALOT_BLOCKS_HPP

#include <unistd.h>
#include <utility>

namespace cachalot {

/** A descriptor of a page for another process: cachalot_export_fd. The destructor closes it. */
class exported_page {
 public:
  /** Makes an object without a descriptor. */
  exported_page() noexcept = default;
  /** Takes over the descriptor of another object, which has none afterwards. */
  exported_page(exported_page&& other) noexcept : fd_(other.release()) {}
  /** Closes the descriptor, then takes over that of another object. */
  exported_page& operator=(exported_page&& other) noexcept {
    exported_page taken(std::move(other));
    std::swap(fd_, taken.fd_);
    return *this;
  }
  ~exported_page() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }

  /** The descriptor, or -1. */
  int fd() const noexcept { return fd_; }

  /** Hands the descriptor over to the caller, who must close it. */
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  friend class allocator;
  explicit exported_page(int fd) noexcept : fd_(fd) {}

  int fd_ = -1;
};

namespace detail {

inline void tell_mapping(void* userdata, int device, void* address, std::size_t bytes) noexcept {
  (*static_cast<std::function<void(int, void*, std::size_t)>*>(userdata))(device, address, bytes);
}

}  // namespace detail

inline cachalot_block allocator::block_at(const void* address) const {
  cachalot_block found = CACHALOT_BLOCK_INIT;
  check(cachalot_get_block(get(), address, &found));
  return found;
}

inline cachalot_page_statistics allocator::page_statistics(int device) const {
  cachalot_page_statistics pages = CACHALOT_PAGE_STATISTICS_INIT;
  check(cachalot_get_page_statistics(get(), device, &pages));
  return pages;
}

inline std::vector<cachalot_extent> allocator::extents(const void* block) const {
  std::size_t count = 0;
  check(cachalot_get_extents(get(), block, nullptr, &count));
  std::vector<cachalot_extent> found(count);
  check(cachalot_get_extents(get(), block, found.data(), &count));
  return found;
}

inline void allocator::pin(const void* block) const {
  check(cachalot_pin(get(), block));
}

inline void allocator::unpin(const void* block) const {
  check(cachalot_unpin(get(), block));
}

inline std::uint64_t allocator::advise(const void* block, cachalot_advice advice) const {
  std::uint64_t moved = 0;
  check(cachalot_advise(get(), block, advice, &moved));
  return moved;
}

inline exported_page allocator::export_fd(const void* address) const {
  int fd = -1;
  check(cachalot_export_fd(get(), address, &fd));
  return exported_page(fd);
}

inline void allocator::on_map(std::function<void(int, void*, std::size_t)> callback) {
  auto kept = std::make_unique<mapping>(std::move(callback));
  check(cachalot_on_map(get(), *kept ? &detail::tell_mapping : nullptr, kept.get()));
  map_ = std::move(kept);
}

inline void allocator::on_unmap(std::function<void(int, void*, std::size_t)> callback) {
  auto kept = std::make_unique<mapping>(std::move(callback));
  check(cachalot_on_unmap(get(), *kept ? &detail::tell_mapping : nullptr, kept.get()));
  unmap_ = std::move(kept);
}

}  // namespace cachalot

#endif
