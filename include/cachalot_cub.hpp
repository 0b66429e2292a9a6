/**
 * @file cachalot_cub.hpp
 * A replacement for `cub::CachingDeviceAllocator`: the same functions over an allocator of cachalot.
 *
 * @code
 * cachalot::CachingDeviceAllocator allocator;  // was: cub::CachingDeviceAllocator
 * void* data = nullptr;
 * cudaError_t error = allocator.DeviceAllocate(&data, bytes, stream);
 * ...
 * error = allocator.DeviceFree(data);
 * @endcode
 *
 * Differences from CUB:
 *   - Sizes have no bins. The constructors take CUB's arguments for bins, and ignore them.
 *   - The default constructor caches without a limit; CUB's default is 6,291,455 bytes on each device.
 *   - Memory that was freed on a stream is used again on this stream only, until it returns to the driver.
 *   - The fields of CUB's class do not exist: get() gives access to statistics, snapshots and traces.
 *
 * The header needs the CUDA runtime.
 */
#ifndef CACHALOT_CUB_HPP
#define CACHALOT_CUB_HPP

#include <cachalot.hpp>

#include <cuda_runtime_api.h>

#include <mutex>

namespace cachalot {

/**
 * A caching allocator with the functions of `cub::CachingDeviceAllocator`.
 *
 * The first request makes the allocator of cachalot, so an object may be a global variable. Each device is opened when
 * memory is first requested on it. Any thread may call any function at any time.
 */
class CachingDeviceAllocator {
 public:
  /** No limit of cached bytes. */
  static constexpr std::size_t INVALID_SIZE = static_cast<std::size_t>(-1);
  /** No limit of bins. Accepted for CUB's sake. */
  static constexpr unsigned int INVALID_BIN = static_cast<unsigned int>(-1);
  /** The device that is current on the calling thread. */
  static constexpr int INVALID_DEVICE_ORDINAL = -1;

  /**
   * Makes an allocator of every device. With `skip_cleanup`, the destructor leaves all memory to the end of the
   * process: for global variables, because their destructors can run after the end of the driver. `debug` is ignored.
   */
  explicit CachingDeviceAllocator(bool skip_cleanup = false, bool debug = false) : skip_cleanup_(skip_cleanup) {
    static_cast<void>(debug);
    options_.flags = CACHALOT_OPEN_LATER;
  }

  /** Makes an allocator that caches at most `max_cached_bytes` on each device. The arguments for bins are ignored. */
  explicit CachingDeviceAllocator(unsigned int bin_growth, unsigned int min_bin = 1, unsigned int max_bin = INVALID_BIN,
                                  std::size_t max_cached_bytes = INVALID_SIZE, bool skip_cleanup = false)
      : CachingDeviceAllocator(skip_cleanup) {
    static_cast<void>(bin_growth);
    static_cast<void>(min_bin);
    static_cast<void>(max_bin);
    max_cached_bytes_ = max_cached_bytes;
  }

  /** Makes an allocator with options of cachalot, such as a policy. Devices keep the numbers of the CUDA runtime. */
  explicit CachingDeviceAllocator(options wanted, bool skip_cleanup = false)
      : options_(std::move(wanted)), skip_cleanup_(skip_cleanup) {}

  CachingDeviceAllocator(const CachingDeviceAllocator&) = delete;
  CachingDeviceAllocator& operator=(const CachingDeviceAllocator&) = delete;

  virtual ~CachingDeviceAllocator() {
    if (skip_cleanup_) {
      static_cast<void>(allocator_.release());
    }
  }

  /** The allocator, made by the first call. Throws what the constructor of cachalot::allocator throws. */
  const allocator& get() {
    std::call_once(once_, [this] {
      allocator_ = std::make_unique<allocator>(options_);
      is_made_ = true;
    });
    return *allocator_;
  }

  /** Allocates memory on a device for a stream. 0 bytes have an address, too. */
  cudaError_t DeviceAllocate(int device, void** d_ptr, std::size_t bytes, cudaStream_t active_stream = nullptr) {
    *d_ptr = nullptr;
    return on_device(device, [&](const cachalot_allocator* handle, int index) {
      return cachalot_malloc(handle, index, bytes == 0 ? 1 : bytes, active_stream, d_ptr);
    });
  }

  /** Allocates memory on the current device for a stream. */
  cudaError_t DeviceAllocate(void** d_ptr, std::size_t bytes, cudaStream_t active_stream = nullptr) {
    return DeviceAllocate(INVALID_DEVICE_ORDINAL, d_ptr, bytes, active_stream);
  }

  /** Frees memory of a device in the order of the stream of the request. Where the release of cached memory above the
   * limit fails, the memory is free all the same, and the failure goes to the handler of set_failure_handler. */
  cudaError_t DeviceFree(int device, void* d_ptr) {
    return on_device(device, [&](const cachalot_allocator* handle, int index) {
      const cachalot_status freed = cachalot_free(handle, d_ptr);
      if (freed == CACHALOT_OK) {
        detail::report(shrink(handle, index));
      }
      return freed;
    });
  }

  /** Frees memory of the current device in the order of the stream of the request. */
  cudaError_t DeviceFree(void* d_ptr) { return DeviceFree(INVALID_DEVICE_ORDINAL, d_ptr); }

  /** Releases the cached memory of every device. Waits for frees that other streams delay. */
  cudaError_t FreeAllCached() {
    // Without a request so far, nothing is cached, and the driver stays untouched.
    if (!is_made_) {
      return cudaSuccess;
    }
    return guarded([this] {
      const allocator& all = get();
      cachalot_status status = CACHALOT_OK;
      for (int index = 0; index < all.device_count() && status == CACHALOT_OK; ++index) {
        status = cachalot_empty_cache(all.get(), index);
      }
      return status;
    });
  }

  /**
   * Limits the cached bytes of each device; INVALID_SIZE removes the limit. From now on, a free above the limit
   * releases segments without allocated blocks. Such a free reads the statistics, and takes some microseconds.
   */
  cudaError_t SetMaxCachedBytes(std::size_t max_cached_bytes) {
    max_cached_bytes_ = max_cached_bytes;
    return cudaSuccess;
  }

 private:
  // The runtime's number of a device as the allocator's number, or -1.
  int index_of(int ordinal) const noexcept {
    if (options_.devices.empty()) {
      return ordinal;
    }
    for (std::size_t index = 0; index < options_.devices.size(); ++index) {
      if (options_.devices[index] == ordinal) {
        return static_cast<int>(index);
      }
    }
    return -1;
  }

  // Calls a function with the handle and the allocator's number of a device.
  template <class Call>
  cudaError_t on_device(int device, Call&& call) {
    if (device == INVALID_DEVICE_ORDINAL) {
      const cudaError_t found = cudaGetDevice(&device);
      if (found != cudaSuccess) {
        return found;
      }
    }
    return guarded([&] { return call(get().get(), index_of(device)); });
  }

  // Turns a status, or an exception of cachalot, into an error of the runtime.
  template <class Call>
  static cudaError_t guarded(Call&& call) {
    try {
      return meaning(call());
    } catch (const error& failed) {
      return meaning(failed.status());
    } catch (const std::bad_alloc&) {
      return cudaErrorMemoryAllocation;
    } catch (...) {
      return cudaErrorUnknown;
    }
  }

  // Releases segments while more than the limit is cached.
  cachalot_status shrink(const cachalot_allocator* handle, int index) const {
    const std::size_t most = max_cached_bytes_;
    if (most == INVALID_SIZE) {
      return CACHALOT_OK;
    }
    cachalot_statistics now = CACHALOT_STATISTICS_INIT;
    const cachalot_status status = cachalot_get_statistics(handle, index, &now);
    if (status != CACHALOT_OK) {
      return status;
    }
    const auto reserved = static_cast<std::size_t>(now.reserved_bytes.current);
    const auto active = static_cast<std::size_t>(now.active_bytes.current);
    return reserved - active > most ? cachalot_trim(handle, index, active + most) : CACHALOT_OK;
  }

  static cudaError_t meaning(cachalot_status status) noexcept {
    switch (status) {
      case CACHALOT_OK:
        return cudaSuccess;
      case CACHALOT_ERROR_OUT_OF_MEMORY:
      case CACHALOT_ERROR_REJECTED:
      case CACHALOT_ERROR_TOO_LARGE:
      case CACHALOT_ERROR_TABLE_FULL:
        return cudaErrorMemoryAllocation;
      case CACHALOT_ERROR_UNKNOWN_DEVICE:
        return cudaErrorInvalidDevice;
      case CACHALOT_ERROR_INVALID_STREAM:
        return cudaErrorInvalidResourceHandle;
      case CACHALOT_ERROR_NO_DRIVER:
      case CACHALOT_ERROR_DRIVER_TOO_OLD:
        return cudaErrorInsufficientDriver;
      case CACHALOT_ERROR_CAPTURING:
        return cudaErrorStreamCaptureUnsupported;
      case CACHALOT_ERROR_SHUTDOWN:
        return cudaErrorCudartUnloading;
      case CACHALOT_ERROR_DRIVER:
      case CACHALOT_ERROR_CONTEXT_LOST:
        break;
      default:
        return status < 200 ? cudaErrorInvalidValue : cudaErrorUnknown;
    }
    // The codes of the driver are those of the runtime, since CUDA 10.1.
    const std::uint32_t code = cachalot_last_driver_code();
    return code == 0 ? cudaErrorUnknown : static_cast<cudaError_t>(code);
  }

  options options_;
  bool skip_cleanup_;
  std::atomic<std::size_t> max_cached_bytes_{INVALID_SIZE};
  std::once_flag once_;
  std::atomic<bool> is_made_{false};
  std::unique_ptr<allocator> allocator_;
};

}  // namespace cachalot

#endif
