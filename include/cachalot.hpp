/**
 * @file cachalot.hpp
 * The C++ interface of cachalot, for C++17 and later: owning types over the functions of cachalot.h.
 *
 * Every function is inline and calls the C function of the same name. The documentation of cachalot.h applies here, too.
 *
 * @code
 * cachalot::allocator allocator;
 * cachalot::buffer<float> numbers(allocator, 1 << 20, stream);
 * kernel<<<groups, threads, 0, stream>>>(numbers.data(), numbers.size());
 * // Freed at the end of the scope, in the order of the stream.
 * @endcode
 *
 * How do I …
 *   - allocate n elements of a type: buffer; allocate bytes: block, allocator::allocate
 *   - allocate plain addresses: allocator::malloc, allocator::free
 *   - use a block on a second stream: block::record_stream, block::record_use
 *   - capture a graph: private_pool, capture_scope
 *   - grow a table or a cache in place: range
 *   - limit or release memory: allocator::set_limit, allocator::trim, allocator::empty_cache
 *   - learn of failures in destructors: set_failure_handler
 *   - allocate pinned memory of the host: host_allocator
 *   - give memory to Thrust: basic_resource; to libraries with `cuda::mr`: cachalot_cuda_mr.hpp
 *   - replace `cub::CachingDeviceAllocator`: cachalot_cub.hpp
 *
 * Rules
 *   - A function that fails throws out_of_memory (a `std::bad_alloc`) or error (a `std::runtime_error`).
 *   - Destructors never throw, and report failures to the handler of set_failure_handler. If a callback throws, the
 *     library continues as if the callback had done nothing.
 *   - Each type owns a resource, and can be moved but not copied. An allocator must outlive its blocks, buffers, pools,
 *     ranges and resources.
 *   - Any thread may call `const` members at any time. Only one thread at a time may move, assign or destroy an object.
 *   - Supported: Linux on x86-64, with GCC, Clang or nvcc.
 */
#ifndef CACHALOT_HPP
#define CACHALOT_HPP

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "cachalot.hpp needs C++17 or later: compile with -std=c++17"
#endif

#include <cachalot.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

/** The C++ interface of cachalot. */
namespace cachalot {

/** A failed call, for another reason than too little device memory. */
class error : public std::runtime_error {
 public:
  /** Makes the exception of a status, with its text and the code of the driver. */
  error(cachalot_status status, const char* text, std::uint32_t driver_code)
      : std::runtime_error(text), status_(status), driver_code_(driver_code) {}

  /** The status of the C function. */
  cachalot_status status() const noexcept { return status_; }
  /** The error code of the driver (a `CUresult`), or 0 if the driver was not involved. */
  std::uint32_t driver_code() const noexcept { return driver_code_; }

 private:
  cachalot_status status_;
  std::uint32_t driver_code_;
};

/** A request that failed because device memory ran out. */
class out_of_memory : public std::bad_alloc {
 public:
  /** Makes the exception with a report. */
  explicit out_of_memory(const char* text) : text_(text) {}

  /** The whole report, as cachalot_last_error returns it. */
  const char* what() const noexcept override { return text_.what(); }

 private:
  // Copying a runtime_error never throws, as the copy of an exception must not.
  std::runtime_error text_;
};

/** Throws out_of_memory or error for a status other than CACHALOT_OK. Call it right after the C function. */
inline void check(cachalot_status status) {
  if (status == CACHALOT_OK) {
    return;
  }
  if (status == CACHALOT_ERROR_OUT_OF_MEMORY || status == CACHALOT_ERROR_REJECTED) {
    throw out_of_memory(cachalot_last_error());
  }
  throw error(status, cachalot_last_error(), cachalot_last_driver_code());
}

/** A failure where no exception can be thrown: in a destructor, in block::reset, or in a resource's deallocate. */
struct failure {
  cachalot_status status; /**< The status of the C function. */
  const char* text;       /**< The message of cachalot_last_error, valid until the handler returns or a call in it fails. */
  const void* data;       /**< The address of the block that was not freed, or null. */
  std::size_t bytes;      /**< The size of this block, or 0. */
};

/** A function that receives failures. It may run on several threads at the same time. */
using failure_handler = void (*)(const failure&) noexcept;

namespace detail {

inline std::atomic<failure_handler> handler{nullptr};

/** Reports a status other than CACHALOT_OK to the handler, if there is one. */
inline void report(cachalot_status status, const void* data = nullptr, std::size_t bytes = 0) noexcept {
  if (status == CACHALOT_OK) {
    return;
  }
  if (const failure_handler current = handler.load(std::memory_order_acquire)) {
    current(failure{status, cachalot_last_error(), data, bytes});
  }
}

/** The bytes of `count` elements. A product that does not fit becomes a size that every allocator refuses. */
inline std::size_t bytes_of(std::size_t count, std::size_t element) noexcept {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  return count > most / element ? most : count * element;
}

}  // namespace detail

/**
 * Sets the handler of failures that cannot be thrown, and returns the previous handler. Null, the default, ignores such
 * failures: the block then stays allocated until the allocator is destroyed.
 *
 * The handler belongs to the whole program, like `std::set_terminate`. It runs on the thread of the failed call, with
 * no lock held, and may call cachalot. Any thread may set a handler at any time; a call under way may still run the
 * previous handler.
 */
inline failure_handler set_failure_handler(failure_handler wanted) noexcept {
  return detail::handler.exchange(wanted, std::memory_order_acq_rel);
}

/** The options of an allocator: cachalot_options with texts and lists that the structure owns. */
struct options {
  std::uint32_t flags = 0;           /**< CACHALOT_SIMULATED and the other flags of cachalot_options. */
  std::vector<int> devices;          /**< Numbers of the driver; empty: every device, or one simulated device. */
  std::vector<void*> contexts;       /**< Empty, or one context for each of `devices`; null: the primary context. */
  std::string config;                /**< Settings in the syntax of `PYTORCH_CUDA_ALLOC_CONF`. */
  std::uint64_t limit_bytes = 0;     /**< The limit on reserved bytes of each device; 0: no limit. */
  std::uint64_t simulated_bytes = 0; /**< The memory of each simulated device; 0: 16 GiB. */
};

class allocator;

/** A block of device memory. The destructor frees the block in the order of the block's stream. */
class block {
 public:
  /** Makes an empty block. */
  block() noexcept = default;
  /** Takes over the memory of another block, which becomes empty. */
  block(block&& other) noexcept { swap(other); }
  /** Frees the memory, then takes over the memory of another block. */
  block& operator=(block&& other) noexcept {
    block taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~block() { reset(); }

  /** The address, or null for an empty block and a block of 0 bytes. */
  void* data() const noexcept { return data_; }
  /** The address as a pointer to T. */
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  /** The requested bytes. */
  std::size_t size() const noexcept { return size_; }
  /** The stream of the request. */
  cachalot_stream stream() const noexcept { return stream_; }
  /** Whether the block has memory. */
  explicit operator bool() const noexcept { return data_ != nullptr; }

  /** Announces work on another stream that uses the block. Call it after the submission of the work. Does nothing without
   * memory. */
  void record_stream(cachalot_stream stream) const {
    if (data_ != nullptr) {
      check(cachalot_record_stream(allocator_, data_, stream));
    }
  }
  /** Announces that the work submitted to another stream so far uses the block; later work delays no reuse. Does nothing
   * without memory. */
  void record_use(cachalot_stream stream) const {
    if (data_ != nullptr) {
      check(cachalot_record_use(allocator_, data_, stream));
    }
  }

  /** Frees the memory now. A failure goes to the failure handler. */
  void reset() noexcept {
    if (data_ != nullptr) {
      detail::report(cachalot_free_sized(allocator_, data_, size_), data_, size_);
    }
    forget();
  }

  /** Hands the memory over to the caller, who must call cachalot_free. */
  void* release() noexcept {
    void* const data = data_;
    forget();
    return data;
  }

  /** Exchanges two blocks. */
  void swap(block& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(stream_, other.stream_);
  }

 private:
  friend class allocator;
  block(const cachalot_allocator* allocator, void* data, std::size_t size, cachalot_stream stream) noexcept
      : allocator_(allocator), data_(data), size_(size), stream_(stream) {}

  void forget() noexcept {
    data_ = nullptr;
    size_ = 0;
  }

  const cachalot_allocator* allocator_ = nullptr;
  void* data_ = nullptr;
  std::size_t size_ = 0;
  cachalot_stream stream_ = nullptr;
};

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

/** The memory of every pool with a tag, for allocator::park. */
inline cachalot_park_target park_tag(std::uint64_t tag) noexcept {
  return {sizeof(cachalot_park_target), tag, nullptr, CACHALOT_PARK_TAG, 0};
}

/** The memory of a stream in the default pool, for allocator::park. */
inline cachalot_park_target park_stream(cachalot_stream stream) noexcept {
  return {sizeof(cachalot_park_target), 0, stream, CACHALOT_PARK_STREAM, 0};
}

/** An allocator. The destructor destroys it; a failure, such as blocks still in use, goes to the failure handler. */
class allocator {
 public:
  /** Makes an allocator of every device with the default settings. */
  allocator() : allocator(options()) {}

  /** Makes an allocator with options. */
  explicit allocator(const options& wanted) {
    if (!wanted.contexts.empty() && wanted.contexts.size() != wanted.devices.size()) {
      throw std::invalid_argument("cachalot::options: `contexts` needs one entry for each of `devices`, or none");
    }
    cachalot_options plain = CACHALOT_OPTIONS_INIT;
    plain.flags = wanted.flags;
    plain.device_count = static_cast<std::uint32_t>(wanted.devices.size());
    plain.devices = wanted.devices.empty() ? nullptr : wanted.devices.data();
    plain.contexts = wanted.contexts.empty() ? nullptr : wanted.contexts.data();
    plain.config = wanted.config.c_str();
    plain.limit_bytes = wanted.limit_bytes;
    plain.simulated_bytes = wanted.simulated_bytes;
    cachalot_allocator* made = nullptr;
    check(cachalot_create(&plain, &made));
    handle_.reset(made);
  }

  /** Takes over the allocator of another object, which has none afterwards. */
  allocator(allocator&& other) noexcept = default;
  /** Destroys the allocator, then takes over that of another object. */
  allocator& operator=(allocator&& other) noexcept {
    // The callbacks run while their allocator is destroyed, and are destroyed after it.
    allocator taken(std::move(other));
    std::swap(shortage_, taken.shortage_);
    std::swap(oom_, taken.oom_);
    std::swap(map_, taken.map_);
    std::swap(unmap_, taken.unmap_);
    std::swap(describer_, taken.describer_);
    std::swap(handle_, taken.handle_);
    return *this;
  }
  ~allocator() = default;

  /** The handle for the C functions. */
  cachalot_allocator* get() const noexcept { return handle_.get(); }

  /** Destroys the allocator now, and throws what cachalot_destroy returns. Free every block before. */
  void destroy() { check(cachalot_destroy(handle_.release())); }

  /** The number of devices. */
  int device_count() const {
    int count = 0;
    check(cachalot_get_device_count(get(), &count));
    return count;
  }

  /** Describes a device. */
  cachalot_device_info device_info(int device) const {
    cachalot_device_info info = CACHALOT_DEVICE_INFO_INIT;
    check(cachalot_get_device_info(get(), device, &info));
    return info;
  }

  /** Throws if the device is lost. */
  void check_health(int device) const { check(cachalot_check_health(get(), device)); }
  /** Lets device `peer` use the memory of `device`. */
  void enable_peer_access(int device, int peer) const { check(cachalot_enable_peer_access(get(), device, peer)); }

  // ---- Memory ----

  /** Allocates a block for a stream. */
  block allocate(std::size_t bytes, cachalot_stream stream, int device = 0) const {
    return block(get(), malloc(bytes, stream, device), bytes, stream);
  }

  /** Allocates memory for a stream and returns the address. */
  void* malloc(std::size_t bytes, cachalot_stream stream, int device = 0) const {
    void* data = nullptr;
    check(cachalot_malloc(get(), device, bytes, stream, &data));
    return data;
  }
  /** Frees memory. */
  void free(void* data) const { check(cachalot_free(get(), data)); }
  /** Frees memory, and checks the requested size. */
  void free(void* data, std::size_t bytes) const { check(cachalot_free_sized(get(), data, bytes)); }
  /** Frees memory once the safe frontier of its device has reached `count`. */
  void free_at(void* data, std::uint64_t count) const { check(cachalot_free_at(get(), data, count)); }
  /** Declares all work of a device numbered up to `count` as done; see free_at. */
  void set_safe_frontier(int device, std::uint64_t count) const {
    check(cachalot_set_safe_frontier(get(), device, count));
  }
  /** Announces work on another stream that uses a block. */
  void record_stream(void* data, cachalot_stream stream) const { check(cachalot_record_stream(get(), data, stream)); }
  /** Announces that the work submitted to another stream so far uses a block; later work delays no reuse. */
  void record_use(void* data, cachalot_stream stream) const { check(cachalot_record_use(get(), data, stream)); }
  /** Announces the end of a stream. Call it before `cudaStreamDestroy`. */
  void stream_destroyed(int device, cachalot_stream stream) const {
    check(cachalot_stream_destroyed(get(), device, stream));
  }
  /** Announces a stream that may end without a report, although the program promised reports. */
  void stream_unreported(int device, cachalot_stream stream) const {
    check(cachalot_stream_unreported(get(), device, stream));
  }

  /** Describes the block that contains an address. */
  cachalot_block block_at(const void* address) const {
    cachalot_block found = CACHALOT_BLOCK_INIT;
    check(cachalot_get_block(get(), address, &found));
    return found;
  }

  /** Explains an address at which a kernel has faulted, in sentences: cachalot_explain_address. */
  std::string explain_address(const void* address) const {
    std::size_t length = 0;
    check(cachalot_explain_address(get(), address, nullptr, 0, &length));
    std::string text(length, '\0');
    // A string has room for the final NUL. The text may change between two calls.
    cachalot_status status = cachalot_explain_address(get(), address, &text[0], text.size() + 1, &length);
    while (status == CACHALOT_ERROR_BUFFER_TOO_SMALL) {
      text.resize(2 * text.size() + 1);
      status = cachalot_explain_address(get(), address, &text[0], text.size() + 1, &length);
    }
    check(status);
    text.resize(length);
    return text;
  }

  /** Predicts the first step of a request, and changes nothing. */
  cachalot_forecast forecast(std::size_t bytes, cachalot_stream stream, int device = 0) const {
    cachalot_forecast outlook = CACHALOT_FORECAST_INIT;
    check(cachalot_get_forecast(get(), device, bytes, stream, &outlook));
    return outlook;
  }

  /** Reports whether requests would be served if they were made now, and changes nothing: cachalot_get_fit. */
  cachalot_fit fit(const std::vector<std::size_t>& sizes, cachalot_stream stream, int device = 0) const {
    cachalot_fit fit = CACHALOT_FIT_INIT;
    check(cachalot_get_fit(get(), device, sizes.data(), sizes.size(), stream, &fit));
    return fit;
  }

  // ---- The cache ----

  /** Makes a pending block available once its streams have finished. */
  void process_events(int device = 0) const { check(cachalot_process_events(get(), device)); }
  /** Waits for pending frees, and releases every free segment. */
  void empty_cache(int device = 0) const { check(cachalot_empty_cache(get(), device)); }
  /** Releases free segments until at most `keep_bytes` are reserved. */
  void trim(std::size_t keep_bytes, int device = 0) const { check(cachalot_trim(get(), device, keep_bytes)); }

  /** Does the work that requests under `policy:stitched` have put off, and gives idle memory back under `reclaim:auto`:
   * cachalot_maintain. Returns whether something is left. */
  bool maintain(std::uint64_t max_us, int device = 0) const {
    int more = 0;
    check(cachalot_maintain(get(), device, max_us, &more));
    return more != 0;
  }

  /** Lets a thread of the library do the same for every device; 0 ends the thread: cachalot_maintain_every. */
  void maintain_every(std::uint64_t interval_us, std::uint64_t max_us) const {
    check(cachalot_maintain_every(get(), interval_us, max_us));
  }

  /** Reports what maintain has given back under `reclaim:auto`: cachalot_get_reclaim_statistics. */
  cachalot_reclaim_statistics reclaim_statistics(int device = 0) const {
    cachalot_reclaim_statistics reclaimed = CACHALOT_RECLAIM_STATISTICS_INIT;
    check(cachalot_get_reclaim_statistics(get(), device, &reclaimed));
    return reclaimed;
  }

  /** Reports what the pages of virtual memory are used for and what they have cost: cachalot_get_page_statistics. */
  cachalot_page_statistics page_statistics(int device = 0) const {
    cachalot_page_statistics pages = CACHALOT_PAGE_STATISTICS_INIT;
    check(cachalot_get_page_statistics(get(), device, &pages));
    return pages;
  }

  /** Parks the memory of a target; the contents are kept unless the options say otherwise: cachalot_park. */
  void park(const cachalot_park_target& target, const cachalot_park_options& options = CACHALOT_PARK_OPTIONS_INIT,
            int device = 0) const {
    check(cachalot_park(get(), device, &target, &options));
  }
  /** Wakes the memory of a target, at the same addresses: cachalot_wake. */
  void wake(const cachalot_park_target& target, int device = 0) const { check(cachalot_wake(get(), device, &target)); }
  /** Starts to wake the memory of a target: cachalot_wake_start. */
  void wake_start(const cachalot_park_target& target, int device = 0) const {
    check(cachalot_wake_start(get(), device, &target));
  }
  /** Waits until the memory of a target is awake: cachalot_wake_wait. */
  void wake_wait(const cachalot_park_target& target, int device = 0) const {
    check(cachalot_wake_wait(get(), device, &target));
  }
  /** Reports where the memory of a target is: cachalot_get_park_report. */
  cachalot_park_report park_report(const cachalot_park_target& target, int device = 0) const {
    cachalot_park_report report = CACHALOT_PARK_REPORT_INIT;
    check(cachalot_get_park_report(get(), device, &target, &report));
    return report;
  }
  /** Lets the default pool serve requests under a parked tag, or not: cachalot_tag_set_fallback. */
  void set_tag_fallback(std::uint64_t tag, bool on, int device = 0) const {
    check(cachalot_tag_set_fallback(get(), device, tag, on ? 1 : 0));
  }
  /** Sets the limits of a tag, with CACHALOT_TAG_LIMITS_INIT at first: cachalot_tag_set_limits. */
  void set_tag_limits(std::uint64_t tag, const cachalot_tag_limits& limits, int device = 0) const {
    check(cachalot_tag_set_limits(get(), device, tag, &limits));
  }
  /** Removes the limits of a tag: cachalot_tag_set_limits. */
  void remove_tag_limits(std::uint64_t tag, int device = 0) const {
    check(cachalot_tag_set_limits(get(), device, tag, nullptr));
  }
  /** Releases free memory of the pools with a tag: cachalot_tag_trim. */
  void trim_tag(std::uint64_t tag, std::size_t keep_bytes = 0, int device = 0) const {
    check(cachalot_tag_trim(get(), device, tag, keep_bytes));
  }
  /** Returns the memory that the pools of a tag hold: cachalot_get_tag_report. */
  cachalot_tag_report tag_report(std::uint64_t tag, int device = 0) const {
    cachalot_tag_report report = CACHALOT_TAG_REPORT_INIT;
    check(cachalot_get_tag_report(get(), device, tag, &report));
    return report;
  }
  /** Reports what is on a device, by name: cachalot_get_remaining_memory. */
  cachalot_remaining_memory remaining_memory(int device = 0) const {
    cachalot_remaining_memory memory = CACHALOT_REMAINING_MEMORY_INIT;
    check(cachalot_get_remaining_memory(get(), device, &memory));
    return memory;
  }
  /** Sets how much pinned host memory stays for the next park: cachalot_retain_host_memory. */
  void retain_host_memory(std::uint64_t host_bytes, int device = 0) const {
    check(cachalot_retain_host_memory(get(), device, host_bytes));
  }

  /** The physical parts of a live block: cachalot_get_extents. */
  std::vector<cachalot_extent> extents(const void* block) const {
    std::size_t count = 0;
    check(cachalot_get_extents(get(), block, nullptr, &count));
    std::vector<cachalot_extent> found(count);
    check(cachalot_get_extents(get(), block, found.data(), &count));
    return found;
  }

  /** Keeps the memory under a live block in place: cachalot_pin. */
  void pin(const void* block) const { check(cachalot_pin(get(), block)); }
  /** Undoes one pin of a block that is live or freed: cachalot_unpin. */
  void unpin(const void* block) const { check(cachalot_unpin(get(), block)); }

  /** A descriptor of the page that contains a byte of pinned memory, for another process: cachalot_export_fd. */
  exported_page export_fd(const void* address) const {
    int fd = -1;
    check(cachalot_export_fd(get(), address, &fd));
    return exported_page(fd);
  }

  /** Turns the cache on or off. */
  void set_caching(bool on, int device = 0) const { check(cachalot_set_caching(get(), device, on)); }
  /** Limits the reserved bytes; CACHALOT_NO_LIMIT removes the limit. */
  void set_limit(std::uint64_t bytes, int device = 0) const { check(cachalot_set_limit(get(), device, bytes)); }
  /** Limits the reserved bytes to a fraction of the device's memory. */
  void set_memory_fraction(double fraction, int device = 0) const {
    check(cachalot_set_memory_fraction(get(), device, fraction));
  }
  /** Changes settings on every device. */
  void configure(const std::string& config) const { check(cachalot_configure(get(), config.c_str())); }

  /** The active settings. */
  std::string config(int device = 0) const {
    std::size_t length = 0;
    check(cachalot_get_config(get(), device, nullptr, 0, &length));
    std::string text(length, '\0');
    // A string has room for the final NUL. Another thread may change the settings between two calls.
    cachalot_status status = cachalot_get_config(get(), device, &text[0], text.size() + 1, &length);
    while (status == CACHALOT_ERROR_BUFFER_TOO_SMALL) {
      text.resize(2 * text.size() + 1);
      status = cachalot_get_config(get(), device, &text[0], text.size() + 1, &length);
    }
    check(status);
    text.resize(length);
    return text;
  }

  // ---- Plans ----

  /** Announces the end of an iteration to the planned policy. */
  void begin_iteration(int device = 0) const { check(cachalot_begin_iteration(get(), device)); }

  /** Ends the active plans: cachalot_end_plans. */
  void end_plans(int device = 0) const { check(cachalot_end_plans(get(), device)); }

  /** The progress of the planned policy. */
  cachalot_plan_report plan_report(int device = 0) const {
    cachalot_plan_report report = CACHALOT_PLAN_REPORT_INIT;
    check(cachalot_get_plan_report(get(), device, &report));
    return report;
  }

  /** The report on `tune:auto`. */
  cachalot_tune_report tune_report(int device = 0) const {
    cachalot_tune_report report = CACHALOT_TUNE_REPORT_INIT;
    check(cachalot_get_tune_report(get(), device, &report));
    return report;
  }

  // ---- Statistics ----

  /** The statistics of a device. */
  cachalot_statistics statistics(int device = 0) const {
    cachalot_statistics found = CACHALOT_STATISTICS_INIT;
    check(cachalot_get_statistics(get(), device, &found));
    return found;
  }

  /** A statistic by its name in `torch.cuda.memory_stats()`, or by a name such as `pages.moved_bytes`:
   * cachalot_find_statistic. */
  std::int64_t find_statistic(const std::string& key, int device = 0) const {
    std::int64_t value = 0;
    check(cachalot_find_statistic(get(), device, key.c_str(), &value));
    return value;
  }

  /** The names and the values of all statistics of `find_statistic`: cachalot_visit_statistics. */
  std::vector<std::pair<std::string, std::int64_t>> statistics_by_name(int device = 0) const {
    collected<std::vector<std::pair<std::string, std::int64_t>>> list;
    list.check(cachalot_visit_statistics(get(), device, &collect_stat, &list));
    return std::move(list.value);
  }

  /** Sets every peak to the current value. */
  void reset_peaks(int device = 0) const { check(cachalot_reset_peaks(get(), device)); }
  /** Sets the accumulated statistics to 0. */
  void reset_accumulated(int device = 0) const { check(cachalot_reset_accumulated(get(), device)); }

  // ---- Callbacks ----

  /**
   * Sets the function that frees memory when memory is short, and returns whether it freed any. Set a callback only
   * while no other thread makes requests, and not while a callback runs: the previous callback is destroyed.
   */
  void on_shortage(std::function<bool(int, std::size_t)> callback) {
    auto kept = std::make_unique<shortage>(std::move(callback));
    check(cachalot_on_shortage(get(), *kept ? &ask : nullptr, kept.get()));
    shortage_ = std::move(kept);
  }

  /** Sets the function that learns of a request that is about to fail. Set it under the rule of on_shortage. */
  void on_out_of_memory(std::function<void(const cachalot_oom_report&)> callback) {
    auto kept = std::make_unique<oom>(std::move(callback));
    check(cachalot_on_out_of_memory(get(), *kept ? &tell : nullptr, kept.get()));
    oom_ = std::move(kept);
  }

  /**
   * Sets the function that learns of every page that is mapped, under the rule of on_shortage: cachalot_on_map. An
   * exception ends the program, because the mapping could not be reported.
   */
  void on_map(std::function<void(int, void*, std::size_t)> callback) {
    auto kept = std::make_unique<mapping>(std::move(callback));
    check(cachalot_on_map(get(), *kept ? &tell_mapping : nullptr, kept.get()));
    map_ = std::move(kept);
  }

  /** Sets the function that learns of every page about to be unmapped, under the rules of on_map: cachalot_on_unmap. */
  void on_unmap(std::function<void(int, void*, std::size_t)> callback) {
    auto kept = std::make_unique<mapping>(std::move(callback));
    check(cachalot_on_unmap(get(), *kept ? &tell_mapping : nullptr, kept.get()));
    unmap_ = std::move(kept);
  }

  /** Sets the function that describes call stacks of a trace, under the rule of on_shortage. */
  void on_stack(std::function<void(cachalot_stack*, cachalot_action)> callback) {
    auto kept = std::make_unique<describer>(std::move(callback));
    check(cachalot_on_stack(get(), *kept ? &describe : nullptr, kept.get()));
    describer_ = std::move(kept);
  }

  // ---- Inspection ----

  /** Records the latest `capacity` events of a device; 0 stops the recording. */
  void trace_start(std::size_t capacity, int device = 0) const { check(cachalot_trace_start(get(), device, capacity)); }

  /** The recorded events, oldest first. */
  std::vector<cachalot_trace_entry> trace(int device = 0) const {
    collected<std::vector<cachalot_trace_entry>> entries;
    entries.check(cachalot_visit_trace(get(), device, &collect_entry, &entries));
    return std::move(entries.value);
  }

  /** The metrics of every device as OpenMetrics text: cachalot_write_metrics. */
  std::string metrics() const {
    collected<std::string> text;
    text.check(cachalot_write_metrics(get(), &collect_text, &text));
    return std::move(text.value);
  }

  /** Every segment and block, as JSON or as a pickle. */
  std::string snapshot(cachalot_format format = CACHALOT_JSON) const {
    collected<std::string> text;
    cachalot_snapshot_options options = CACHALOT_SNAPSHOT_OPTIONS_INIT;
    options.format = format;
    text.check(cachalot_snapshot(get(), &options, &collect_text, &text));
    return std::move(text.value);
  }
  /** Writes every segment and block to a file. */
  void snapshot(const std::string& path) const {
    cachalot_snapshot_options options = CACHALOT_SNAPSHOT_OPTIONS_INIT;
    options.path = path.c_str();
    check(cachalot_snapshot(get(), &options, nullptr, nullptr));
  }

 private:
  using shortage = std::function<bool(int, std::size_t)>;
  using oom = std::function<void(const cachalot_oom_report&)>;
  using mapping = std::function<void(int, void*, std::size_t)>;
  using describer = std::function<void(cachalot_stack*, cachalot_action)>;

  // What a callback gathers, and the exception that it must not throw across the C function.
  template <class T>
  struct collected {
    T value;
    std::exception_ptr thrown;

    template <class Add>
    int add(Add&& add_to) noexcept {
      try {
        add_to(value);
        return 0;
      } catch (...) {
        thrown = std::current_exception();
        return 1;
      }
    }

    void check(cachalot_status status) const {
      if (thrown) {
        std::rethrow_exception(thrown);
      }
      cachalot::check(status);
    }
  };

  struct destroyer {
    void operator()(cachalot_allocator* handle) const noexcept { detail::report(cachalot_destroy(handle)); }
  };

  static int ask(void* userdata, int device, std::size_t bytes) noexcept {
    try {
      return (*static_cast<shortage*>(userdata))(device, bytes);
    } catch (...) {
      return 0;
    }
  }

  static void tell(void* userdata, const cachalot_oom_report* report) noexcept {
    try {
      (*static_cast<oom*>(userdata))(*report);
    } catch (...) {
      // The request fails in any case, with its own report.
    }
  }

  static void tell_mapping(void* userdata, int device, void* address, std::size_t bytes) noexcept {
    (*static_cast<mapping*>(userdata))(device, address, bytes);
  }

  static void describe(void* userdata, cachalot_stack* stack, cachalot_action action) noexcept {
    try {
      (*static_cast<describer*>(userdata))(stack, action);
    } catch (...) {
      // The frames before the exception count.
    }
  }

  static int collect_entry(void* userdata, const cachalot_trace_entry* entry) noexcept {
    auto& entries = *static_cast<collected<std::vector<cachalot_trace_entry>>*>(userdata);
    return entries.add([entry](auto& value) { value.push_back(*entry); });
  }

  static int collect_stat(void* userdata, const char* key, std::int64_t value) noexcept {
    auto& list = *static_cast<collected<std::vector<std::pair<std::string, std::int64_t>>>*>(userdata);
    return list.add([key, value](auto& values) { values.emplace_back(key, value); });
  }

  static int collect_text(void* userdata, const char* text, std::size_t bytes) noexcept {
    auto& whole = *static_cast<collected<std::string>*>(userdata);
    return whole.add([text, bytes](auto& value) { value.append(text, bytes); });
  }

  // Declared before the handle, so that the callbacks outlive the allocator.
  std::unique_ptr<shortage> shortage_;
  std::unique_ptr<oom> oom_;
  std::unique_ptr<mapping> map_;
  std::unique_ptr<mapping> unmap_;
  std::unique_ptr<describer> describer_;
  std::unique_ptr<cachalot_allocator, destroyer> handle_;
};

/**
 * An allocator of pinned host memory: CACHALOT_HOST. Blocks belong to no stream, and the host may write to them immediately.
 * Call record_stream or record_use for each stream that copies from or to a block, the default stream included.
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

/**
 * Device memory for elements of a type: an owning pointer, a length and a stream. The destructor frees the memory in
 * the order of the stream.
 *
 * The elements are not initialised, and no constructor or destructor of T ever runs: T must be trivially copyable. The
 * memory belongs to the device, so begin() and end() are for kernels, copies and `std::span`. The host must not read
 * or write the elements, unless they are of a host_allocator.
 */
template <class T>
class buffer {
  static_assert(std::is_trivially_copyable_v<T>, "cachalot::buffer<T> needs a trivially copyable T");

 public:
  using value_type = T; /**< The type of the elements. */
  using iterator = T*;  /**< The type of begin(). */

  /** Makes an empty buffer. */
  buffer() noexcept = default;
  /** Allocates memory for `count` elements. */
  buffer(const allocator& owner, std::size_t count, cachalot_stream stream, int device = 0)
      : block_(owner.allocate(detail::bytes_of(count, sizeof(T)), stream, device)), count_(count) {}
  /** Allocates host memory for `count` elements, on the NUMA node of a device. */
  buffer(const host_allocator& owner, std::size_t count, int device = 0)
      : block_(owner.allocate(detail::bytes_of(count, sizeof(T)), device)), count_(count) {}
  /** Takes over the memory of another buffer, which becomes empty. */
  buffer(buffer&& other) noexcept : block_(std::move(other.block_)), count_(std::exchange(other.count_, 0)) {}
  /** Frees the memory, then takes over the memory of another buffer. */
  buffer& operator=(buffer&& other) noexcept {
    block_ = std::move(other.block_);
    count_ = std::exchange(other.count_, 0);
    return *this;
  }

  /** The address of the first element, or null for an empty buffer. */
  T* data() const noexcept { return block_.as<T>(); }
  /** The number of elements. */
  std::size_t size() const noexcept { return count_; }
  /** The number of bytes. */
  std::size_t size_bytes() const noexcept { return block_.size(); }
  /** Whether the buffer has no elements. */
  bool empty() const noexcept { return count_ == 0; }
  /** The stream of the request. */
  cachalot_stream stream() const noexcept { return block_.stream(); }
  /** The address of the first element. */
  T* begin() const noexcept { return data(); }
  /** The address after the last element. */
  T* end() const noexcept { return data() + count_; }

  /** Announces work on another stream that uses the buffer. Call it after the submission of the work. */
  void record_stream(cachalot_stream stream) const { block_.record_stream(stream); }
  /** Announces that the work submitted to another stream so far uses the buffer; later work delays no reuse. */
  void record_use(cachalot_stream stream) const { block_.record_use(stream); }

  /** Frees the memory now. A failure goes to the failure handler. */
  void reset() noexcept {
    block_.reset();
    count_ = 0;
  }

  /** Hands the memory over to the caller, who must call cachalot_free. */
  T* release() noexcept {
    count_ = 0;
    return static_cast<T*>(block_.release());
  }

 private:
  block block_;
  std::size_t count_ = 0;
};

/**
 * An elastic range: addresses that the program fills with memory part by part, for a table or a KV cache that grows in
 * place. The destructor releases the range after the current work of all its streams.
 *
 * Offsets and sizes are in bytes, and multiples of page_bytes(). cachalot_range_commit has the rules of stream order.
 */
class range {
 public:
  /** Makes an object without a range. */
  range() noexcept = default;
  /** Reserves addresses for `max_bytes` on a device, rounded up to whole pages. */
  range(const allocator& owner, std::size_t max_bytes, int device = 0) {
    check(cachalot_range_reserve(owner.get(), device, max_bytes, &range_));
  }
  /** Takes over the range of another object. */
  range(range&& other) noexcept : range_(std::exchange(other.range_, cachalot_range{})) {}
  /** Releases the range, then takes over the range of another object. */
  range& operator=(range&& other) noexcept {
    range moved(std::move(other));
    std::swap(range_, moved.range_);
    return *this;
  }
  ~range() { reset(); }

  /** The address of the first byte, or null without a range. */
  void* data() const noexcept { return range_.base; }
  /** The address as a pointer to T. */
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(range_.base);
  }
  /** The reserved bytes. */
  std::size_t size() const noexcept { return range_.bytes; }
  /** The bytes of a page. */
  std::size_t page_bytes() const noexcept { return range_.page_bytes; }
  /** The range for the C functions. */
  cachalot_range get() const noexcept { return range_; }
  /** Whether the object has a range. */
  explicit operator bool() const noexcept { return range_.base != nullptr; }

  /** Gives a part memory, which later work on `stream` may use. */
  void commit(std::size_t offset, std::size_t bytes, cachalot_stream stream) const {
    check(cachalot_range_commit(range_, offset, bytes, stream));
  }
  /** Gives up the memory of a part, after the current work of `stream`. */
  void decommit(std::size_t offset, std::size_t bytes, cachalot_stream stream) const {
    check(cachalot_range_decommit(range_, offset, bytes, stream));
  }

  /** Releases the range now. A failure goes to the failure handler. */
  void reset() noexcept {
    const cachalot_range released = std::exchange(range_, cachalot_range{});
    if (released.allocator != nullptr) {
      detail::report(cachalot_range_release(released), released.base, released.bytes);
    }
  }

 private:
  cachalot_range range_{};
};

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
