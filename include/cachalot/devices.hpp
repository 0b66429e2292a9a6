/**
 * @file cachalot/devices.hpp
 * The devices of an allocator, and allocators of pinned memory of the host.
 */
#include "../cachalot.hpp" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_DEVICES_HPP
#define CACHALOT_DEVICES_HPP

#include <utility>

namespace cachalot {

inline int allocator::device_count() const {
  int count = 0;
  check(cachalot_get_device_count(get(), &count));
  return count;
}

inline cachalot_device_info allocator::device_info(int device) const {
  cachalot_device_info info = CACHALOT_DEVICE_INFO_INIT;
  check(cachalot_get_device_info(get(), device, &info));
  return info;
}

inline void allocator::check_health(int device) const {
  check(cachalot_check_health(get(), device));
}

inline void allocator::enable_peer_access(int device, int peer) const {
  check(cachalot_enable_peer_access(get(), device, peer));
}

/**
 * An allocator of pinned host memory: CACHALOT_HOST. Blocks belong to no stream, and the host may write to them
 * immediately. Call record_stream or record_use for each stream that copies from or to a block, the default stream
 * included.
 *
 * @code
 * cachalot::host_allocator host;
 * cachalot::buffer<float> staging(host, 1 << 20);
 * read_file(staging.data(), staging.size_bytes());
 * cudaMemcpyAsync(on_device, staging.data(), staging.size_bytes(), cudaMemcpyHostToDevice, stream);
 * staging.record_stream(stream);
 * // Freed at the end of the scope, and used again when the copy is done.
 * @endcode
 */
class host_allocator : public allocator {
 public:
  /** Makes an allocator of host memory for every device, with the default settings. */
  host_allocator() : host_allocator(options()) {}
  /** Makes an allocator of host memory with options. */
  explicit host_allocator(options wanted) : allocator(of_host(std::move(wanted))) {}

  /** Allocates a block on the NUMA node of a device. */
  block allocate(std::size_t bytes, int device = 0) const { return allocator::allocate(bytes, nullptr, device); }
  /** Allocates memory on the NUMA node of a device and returns the address. */
  void* malloc(std::size_t bytes, int device = 0) const { return allocator::malloc(bytes, nullptr, device); }

 private:
  static options of_host(options wanted) {
    wanted.flags |= CACHALOT_HOST;
    return wanted;
  }
};

template <class T>
buffer<T>::buffer(const host_allocator& owner, std::size_t count, int device)
    : block_(owner.allocate(detail::bytes_of(count, sizeof(T)), device)), count_(count) {}

}  // namespace cachalot

#endif
