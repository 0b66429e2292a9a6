/**
 * @file cachalot/pools.hpp
 * Private pools, which keep some requests apart from the others, and the capture of graphs.
 */
#include "../cachalot.hpp" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_POOLS_HPP
#define CACHALOT_POOLS_HPP

#include <utility>

namespace cachalot {

/** A private pool. The object is a user of the pool until the end of its life. */
class private_pool {
 public:
  /** Makes a pool of a device, with flags such as CACHALOT_POOL_USE_ON_OOM. */
  private_pool(const allocator& owner, int device, std::uint32_t flags = 0) : allocator_(owner.get()), device_(device) {
    check(cachalot_pool_create(allocator_, device_, flags, &pool_));
  }
  /** Takes over the pool of another object. */
  private_pool(private_pool&& other) noexcept
      : allocator_(std::exchange(other.allocator_, nullptr)), device_(other.device_), pool_(other.pool_) {}
  /** Exchanges the pools of two objects. */
  private_pool& operator=(private_pool&& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(device_, other.device_);
    std::swap(pool_, other.pool_);
    return *this;
  }
  ~private_pool() {
    if (allocator_ != nullptr) {
      detail::report(cachalot_pool_release(allocator_, device_, pool_));
    }
  }

  /** The name of the pool, for the C functions. */
  cachalot_pool name() const noexcept { return pool_; }
  /** The device of the pool. */
  int device() const noexcept { return device_; }
  /** The handle of the allocator. */
  const cachalot_allocator* owner() const noexcept { return allocator_; }

  /** Sets the tag under which the pool's memory is parked; 0 removes it: cachalot_pool_set_tag. */
  void set_tag(std::uint64_t tag) const { check(cachalot_pool_set_tag(allocator_, device_, pool_, tag)); }

  /** Waits for pending frees, and releases the free memory of the pool: cachalot_pool_empty. */
  void empty() const { check(cachalot_pool_empty(allocator_, device_, pool_)); }
  /** Releases free memory of the pool until it holds at most `keep_bytes`: cachalot_pool_trim. */
  void trim(std::size_t keep_bytes) const { check(cachalot_pool_trim(allocator_, device_, pool_, keep_bytes)); }
  /** Places new pages of the pool on the host, or ends this: cachalot_pool_spill. */
  void spill(bool on = true) const { check(cachalot_pool_spill(allocator_, device_, pool_, on ? 1 : 0)); }

  /** Lends the pages of the free blocks: cachalot_pool_lend. */
  void lend() const { check(cachalot_pool_lend(allocator_, device_, pool_)); }
  /** Brings lent pages back, before a graph of the pool runs on a stream: cachalot_pool_reclaim. */
  void reclaim(cachalot_stream stream) const { check(cachalot_pool_reclaim(allocator_, device_, pool_, stream)); }

  /** Removes another user, such as a destroyed graph that was captured into the pool. */
  void release() const { check(cachalot_pool_release(allocator_, device_, pool_)); }

 private:
  const cachalot_allocator* allocator_;
  int device_;
  cachalot_pool pool_ = {0, 0};
};

namespace detail {

/** A private pool by its name. The object that owns the pool may be moved, or end, while a route leads there. */
struct named_pool {
  const cachalot_allocator* allocator;
  int device;
  cachalot_pool name;

  explicit named_pool(const private_pool& pool) noexcept
      : allocator(pool.owner()), device(pool.device()), name(pool.name()) {}
};

}  // namespace detail

/** Routes requests to a private pool until the end of the object's life. */
class pool_scope {
 public:
  /** Routes all requests of the pool's device, or all requests of the calling thread. */
  explicit pool_scope(const private_pool& pool, cachalot_route route = CACHALOT_ROUTE_ALL)
      : pool_scope(pool, route, nullptr) {}
  /** Routes the requests of a stream. */
  pool_scope(const private_pool& pool, cachalot_stream stream) : pool_scope(pool, CACHALOT_ROUTE_STREAM, stream) {}
  pool_scope(const pool_scope&) = delete;
  pool_scope& operator=(const pool_scope&) = delete;
  ~pool_scope() {
    detail::report(cachalot_pool_end(pool_.allocator, pool_.device, pool_.name));
    // cachalot_pool_begin added a user.
    detail::report(cachalot_pool_release(pool_.allocator, pool_.device, pool_.name));
  }

 private:
  pool_scope(const private_pool& pool, cachalot_route route, cachalot_stream stream) : pool_(pool) {
    check(cachalot_pool_begin(pool_.allocator, pool_.device, pool_.name, route, stream));
  }

  const detail::named_pool pool_;
};

/**
 * Routes the requests of a stream to a private pool during the capture of a graph. The graph remains a user of the
 * pool: call private_pool::release after the destruction of the graph.
 */
class capture_scope {
 public:
  /** Starts the route. Call it before or after the start of the capture. */
  capture_scope(const private_pool& pool, cachalot_stream stream) : pool_(pool) {
    check(cachalot_capture_begin(pool_.allocator, pool_.device, pool_.name, CACHALOT_ROUTE_STREAM, stream));
  }
  capture_scope(const capture_scope&) = delete;
  capture_scope& operator=(const capture_scope&) = delete;
  ~capture_scope() { detail::report(cachalot_capture_end(pool_.allocator, pool_.device, pool_.name)); }

 private:
  const detail::named_pool pool_;
};

}  // namespace cachalot

#endif
