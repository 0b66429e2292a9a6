/**
 * @file cachalot_cuda_mr.hpp
 * A memory resource of cachalot for libraries that take resources of CCCL's `cuda::mr`, such as `cuda::device_buffer`.
 *
 * @code
 * cachalot::allocator allocator;
 * cachalot::device_resource memory(allocator);
 * cuda::mr::resource_ref<cuda::mr::device_accessible> any = memory;
 * @endcode
 *
 * The header needs CCCL, which is part of the CUDA toolkit, and the CUDA runtime. CCCL renamed the functions of
 * resources in version 3.1, and cachalot::device_resource has both sets of names:
 *
 * | CCCL | in stream order | synchronous | concept |
 * |---|---|---|---|
 * | 2.x, 3.0 | `allocate_async`, `deallocate_async` | `allocate`, `deallocate` | `cuda::mr::async_resource` |
 * | 3.1 and later | `allocate`, `deallocate` with a stream | `allocate_sync`, `deallocate_sync` | `cuda::mr::resource` |
 *
 * Include this header before other headers of CCCL 3.0, or define `LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE`.
 */
#ifndef CACHALOT_CUDA_MR_HPP
#define CACHALOT_CUDA_MR_HPP

#include <cachalot.hpp>

// CCCL 3.0 and earlier hide `cuda::mr` behind this name; later versions ignore the name.
#ifndef LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#endif

#if !__has_include(<cuda/memory_resource>)
#error "cachalot_cuda_mr.hpp needs CCCL: compile with nvcc, or name the folder of <cuda/memory_resource>"
#endif

#include <cuda/memory_resource>
#include <cuda/stream_ref>

#include <cuda_runtime_api.h>

#include <string>

namespace cachalot {

/**
 * The memory of one device as a resource of `cuda::mr`, with the property `cuda::mr::device_accessible`.
 *
 * The resource is a small value that refers to the allocator; copies are equal. The allocator must outlive every copy.
 * Any thread may call any function at any time.
 */
class device_resource {
 public:
  /** Makes a resource of a device. The synchronous functions allocate on `stream`. */
  explicit device_resource(const allocator& owner, int device = 0, cudaStream_t stream = nullptr) noexcept
      : allocator_(owner.get()), device_(device), stream_(stream) {}

  /** @name In stream order
   * @{ */

  /** Allocates memory for a stream. An alignment above 256 throws `std::bad_alloc`. */
  void* allocate(::cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = most_aligned) {
    if (alignment > most_aligned) {
      throw std::bad_alloc();
    }
    void* data = nullptr;
    check(cachalot_malloc(allocator_, device_, bytes, stream.get(), &data));
    return data;
  }

  /** Frees memory after the work of a stream. A failure goes to the failure handler. */
  void deallocate(::cuda::stream_ref stream, void* data, std::size_t bytes, std::size_t = most_aligned) noexcept {
    // The stream may differ from the stream of the request, for which recording does nothing.
    cachalot_status status = cachalot_record_stream(allocator_, data, stream.get());
    if (status == CACHALOT_OK) {
      status = cachalot_free_sized(allocator_, data, bytes);
    }
    // What could not be recorded stays allocated: another request must not get memory that the stream still uses.
    detail::report(status, data, bytes);
  }

  /** Allocates memory for a stream: the name in CCCL 3.0. */
  void* allocate_async(std::size_t bytes, std::size_t alignment, ::cuda::stream_ref stream) {
    return allocate(stream, bytes, alignment);
  }
  /** Allocates memory for a stream: the name in CCCL 3.0. */
  void* allocate_async(std::size_t bytes, ::cuda::stream_ref stream) { return allocate(stream, bytes); }
  /** Frees memory after the work of a stream: the name in CCCL 3.0. */
  void deallocate_async(void* data, std::size_t bytes, std::size_t alignment, ::cuda::stream_ref stream) noexcept {
    deallocate(stream, data, bytes, alignment);
  }
  /** Frees memory after the work of a stream: the name in CCCL 3.0. */
  void deallocate_async(void* data, std::size_t bytes, ::cuda::stream_ref stream) noexcept {
    deallocate(stream, data, bytes);
  }

  /** @}
   * @name Synchronous
   * @{ */

  /** Allocates memory that every stream can use at once: waits for the resource's own stream, in the CUDA runtime. On a
   * simulated device without a runtime that works, throws cachalot::error. */
  void* allocate_sync(std::size_t bytes, std::size_t alignment = most_aligned) {
    void* const data = allocate(::cuda::stream_ref(stream_), bytes, alignment);
    // A cached block may still be in use by earlier work of the stream.
    const cudaError_t waited = cudaStreamSynchronize(stream_);
    if (waited != cudaSuccess) {
      detail::report(cachalot_free_sized(allocator_, data, bytes), data, bytes);
      refuse(waited);
    }
    return data;
  }

  /** Frees memory that no stream uses any more. A failure goes to the failure handler. */
  void deallocate_sync(void* data, std::size_t bytes, std::size_t = most_aligned) noexcept {
    detail::report(cachalot_free_sized(allocator_, data, bytes), data, bytes);
  }

  /** Allocates memory that every stream can use at once: the name in CCCL 3.0. */
  void* allocate(std::size_t bytes, std::size_t alignment = most_aligned) { return allocate_sync(bytes, alignment); }
  /** Frees memory that no stream uses any more: the name in CCCL 3.0. */
  void deallocate(void* data, std::size_t bytes, std::size_t alignment = most_aligned) noexcept {
    deallocate_sync(data, bytes, alignment);
  }

  /** @} */

  /** Whether memory of one resource can be freed by the other. */
  friend bool operator==(const device_resource& left, const device_resource& right) noexcept {
    return left.allocator_ == right.allocator_ && left.device_ == right.device_;
  }
  /** Whether the resources differ. */
  friend bool operator!=(const device_resource& left, const device_resource& right) noexcept {
    return !(left == right);
  }
  /** Declares to CCCL that devices can access the memory. */
  friend constexpr void get_property(const device_resource&, ::cuda::mr::device_accessible) noexcept {}

 private:
  /* Throws the error of a wait that has failed. Without a GPU, the runtime's own text does not name the cause. */
  [[noreturn]] void refuse(cudaError_t waited) const {
    const std::string said = cudaGetErrorString(waited);
    const auto code = static_cast<std::uint32_t>(waited);
    cachalot_device_info info = CACHALOT_DEVICE_INFO_INIT;
    if (cachalot_get_device_info(allocator_, device_, &info) == CACHALOT_OK && info.simulated != 0) {
      throw error(CACHALOT_ERROR_UNSUPPORTED,
                  ("the device is simulated, and allocate_sync waits for a stream of the CUDA runtime (" + said +
                   "): allocate in stream order, or open a GPU")
                      .c_str(),
                  code);
    }
    throw error(CACHALOT_ERROR_DRIVER, said.c_str(), code);
  }

  // The alignment of every block, under every policy.
  static constexpr std::size_t most_aligned = 256;

  const cachalot_allocator* allocator_;
  int device_;
  cudaStream_t stream_;
};

}  // namespace cachalot

#endif
