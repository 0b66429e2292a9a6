/**
 * @file cachalot/resource.hpp
 * Resources: an allocator as the memory of a library that defines its own base class.
 */
#include "../cachalot.hpp" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_RESOURCE_HPP
#define CACHALOT_RESOURCE_HPP

#include <new>

namespace cachalot {

/**
 * A memory resource for one device and one stream, with a base class of another library. For Thrust, use
 * `basic_resource<thrust::mr::memory_resource<P>, P>` with `P = thrust::cuda::pointer<void>`.
 *
 * Blocks are used and freed in the order of the stream. Containers that touch elements on the host, such as
 * `std::pmr::vector`, cannot use the memory of a device.
 */
template <class Base, class Pointer = void*>
class basic_resource : public Base {
 public:
  /** Makes a resource for a stream of a device. */
  basic_resource(const allocator& owner, int device, cachalot_stream stream)
      : allocator_(owner.get()), device_(device), stream_(stream) {}

  /** Allocates memory. An alignment above 256 throws `std::bad_alloc`. */
  // Public, because Thrust calls the function without the base class.
  Pointer do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (alignment > alignment_bytes) {
      throw std::bad_alloc();
    }
    void* data = nullptr;
    // A container can ask for 0 bytes, and expects an address.
    check(cachalot_malloc(allocator_, device_, bytes == 0 ? 1 : bytes, stream_, &data));
    return Pointer(data);
  }

  /** Frees memory. A failure goes to the failure handler. */
  void do_deallocate(Pointer data, std::size_t bytes, std::size_t) noexcept override {
    const std::size_t requested = bytes == 0 ? 1 : bytes;
    detail::report(cachalot_free_sized(allocator_, plain(data), requested), plain(data), requested);
  }

 protected:
  /** Whether memory of one resource can be freed by the other. */
  bool is_same(const basic_resource& other) const noexcept {
    return other.allocator_ == allocator_ && other.device_ == device_ && other.stream_ == stream_;
  }

 private:
  // The alignment of every block, under every policy.
  static constexpr std::size_t alignment_bytes = 256;

  static void* plain(void* data) noexcept { return data; }
  template <class Fancy>
  static void* plain(const Fancy& data) noexcept {
    return static_cast<void*>(data.get());
  }

  const cachalot_allocator* allocator_;
  int device_;
  cachalot_stream stream_;
};

}  // namespace cachalot

#endif
