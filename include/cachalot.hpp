/**
 * @file cachalot.hpp
 * The C++ interface of cachalot, for C++17 and later: owning types over the functions of cachalot.h.
 *
 * Every function is inline and calls the C function of the same name. The documentation of
 * cachalot.h applies here, too.
 *
 * @code
 * cachalot::allocator allocator;
 * cachalot::buffer<float> numbers(allocator, 1 << 20, stream);
 * kernel<<<groups, threads, 0, stream>>>(numbers.data(), numbers.size());
 * // Freed at the end of the scope, in the order of the stream.
 * @endcode
 *
 * This page is what most programs need: exceptions, blocks, allocators and buffers. It includes the
 * other headers, one for each topic, as cachalot.h does. A function of an allocator that belongs to
 * a topic is declared and described here, and defined in the header of the topic:
 *   - cachalot/failures.hpp: failures in destructors, where nothing can be thrown
 *   - cachalot/streams.hpp: several streams for one block, streams that end
 *   - cachalot/blocks.hpp: the block of an address, physical pages, pages for other processes
 *   - cachalot/cache.hpp: the release of cached memory, limits, upkeep, callbacks when memory is short
 *   - cachalot/devices.hpp: devices and their health, allocators of pinned memory of the host
 *   - cachalot/pools.hpp: private pools, and the capture of graphs
 *   - cachalot/tags.hpp: limits for the parts of a program
 *   - cachalot/parking.hpp: memory that the program does not need for a while
 *   - cachalot/ranges.hpp: tables and caches that grow in place
 *   - cachalot/plan.hpp: plans of repeated iterations, predictions
 *   - cachalot/diagnose.hpp: statistics by name, traces, snapshots, metrics
 *   - cachalot/resource.hpp: resources for Thrust and other libraries
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

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cachalot/failures.hpp"

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

namespace detail {

/** The bytes of `count` elements. A product that does not fit becomes a size that every allocator refuses. */
inline std::size_t bytes_of(std::size_t count, std::size_t element) noexcept {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  return count > most / element ? most : count * element;
}

/** A text that a C function copies into a buffer, by calls with the buffer, its size and the text's length. */
template <class Copy>
std::string text_of(Copy&& copy) {
  std::size_t length = 0;
  check(copy(nullptr, 0, &length));
  std::string text(length, '\0');
  // A string has room for the final NUL. The text may change between two calls.
  cachalot_status status = copy(&text[0], text.size() + 1, &length);
  while (status == CACHALOT_ERROR_BUFFER_TOO_SMALL) {
    text.resize(2 * text.size() + 1);
    status = copy(&text[0], text.size() + 1, &length);
  }
  check(status);
  text.resize(length);
  return text;
}

}  // namespace detail

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
class exported_page;
class host_allocator;

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

  /** Announces work on another stream that uses the block. Call it after the submission of the work. Does nothing
   * without memory. */
  void record_stream(cachalot_stream stream) const {
    if (data_ != nullptr) {
      check(cachalot_record_stream(allocator_, data_, stream));
    }
  }
  /** Announces that the work submitted to another stream so far uses the block; later work does not delay the reuse.
   * Does nothing without memory. */
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

  /** Announces work on another stream that uses a block. */
  void record_stream(void* data, cachalot_stream stream) const { check(cachalot_record_stream(get(), data, stream)); }

  // ---- Settings and statistics ----

  /** Changes settings on every device. */
  void configure(const std::string& config) const { check(cachalot_configure(get(), config.c_str())); }
  /** The active settings. */
  std::string config(int device = 0) const {
    return detail::text_of([this, device](char* text, std::size_t size, std::size_t* length) {
      return cachalot_get_config(get(), device, text, size, length);
    });
  }
  /** The statistics of a device. */
  cachalot_statistics statistics(int device = 0) const {
    cachalot_statistics found = CACHALOT_STATISTICS_INIT;
    check(cachalot_get_statistics(get(), device, &found));
    return found;
  }

  // ---- Streams: cachalot/streams.hpp ----

  /** Frees memory once the safe frontier of its device has reached `count`. */
  void free_at(void* data, std::uint64_t count) const;
  /** Declares all work of a device numbered up to `count` as done; see free_at. */
  void set_safe_frontier(int device, std::uint64_t count) const;
  /** Announces that the work submitted to another stream so far uses a block; later work does not delay the reuse. */
  void record_use(void* data, cachalot_stream stream) const;
  /** Announces the end of a stream. Call it before `cudaStreamDestroy`. */
  void stream_destroyed(int device, cachalot_stream stream) const;
  /** Announces a stream that may end without a report, although the program promised reports. */
  void stream_unreported(int device, cachalot_stream stream) const;
  /** Releases free memory of a stream until it holds at most `keep_bytes`: cachalot_stream_trim. */
  void trim_stream(int device, cachalot_stream stream, std::size_t keep_bytes = 0) const;

  // ---- Blocks and pages: cachalot/blocks.hpp ----

  /** Describes the block that contains an address. */
  cachalot_block block_at(const void* address) const;
  /** Reports what the pages of virtual memory are used for and what they have cost: cachalot_get_page_statistics. */
  cachalot_page_statistics page_statistics(int device = 0) const;
  /** The physical parts of a live block: cachalot_get_extents. */
  std::vector<cachalot_extent> extents(const void* block) const;
  /** Keeps the memory under a live block in place: cachalot_pin. */
  void pin(const void* block) const;
  /** Undoes one pin of a block that is live or freed: cachalot_unpin. */
  void unpin(const void* block) const;
  /** Moves the pages of a live block to the host or back, and returns their bytes: cachalot_advise. */
  std::uint64_t advise(const void* block, cachalot_advice advice) const;
  /** A descriptor of the page that contains a byte of pinned memory, for another process: cachalot_export_fd. */
  exported_page export_fd(const void* address) const;
  /**
   * Sets the function that learns of every page that is mapped, under the rule of on_shortage: cachalot_on_map. An
   * exception ends the program, because the mapping could not be reported.
   */
  void on_map(std::function<void(int, void*, std::size_t)> callback);
  /** Sets the function that learns of every page about to be unmapped, under the rules of on_map: cachalot_on_unmap. */
  void on_unmap(std::function<void(int, void*, std::size_t)> callback);

  // ---- The cache: cachalot/cache.hpp ----

  /** Makes a pending block available once its streams have finished. */
  void process_events(int device = 0) const;
  /** Waits for pending frees, and releases every free segment. */
  void empty_cache(int device = 0) const;
  /** Releases free segments until at most `keep_bytes` are reserved. */
  void trim(std::size_t keep_bytes, int device = 0) const;
  /** Does the work that requests under `policy:stitched` have put off, and gives idle memory back under `reclaim:auto`:
   * cachalot_maintain. Returns whether something is left. */
  bool maintain(std::uint64_t max_us, int device = 0) const;
  /** Lets a thread of the library do the same for every device; 0 ends the thread: cachalot_maintain_every. */
  void maintain_every(std::uint64_t interval_us, std::uint64_t max_us) const;
  /** Reports what maintain has given back under `reclaim:auto`: cachalot_get_reclaim_statistics. */
  cachalot_reclaim_statistics reclaim_statistics(int device = 0) const;
  /** Turns the cache on or off. */
  void set_caching(bool on, int device = 0) const;
  /** Limits the reserved bytes; CACHALOT_NO_LIMIT removes the limit. */
  void set_limit(std::uint64_t bytes, int device = 0) const;
  /** Limits the reserved bytes to a fraction of the device's memory. */
  void set_memory_fraction(double fraction, int device = 0) const;
  /**
   * Sets the function that frees memory when memory is short, and returns whether it freed any. Set a callback only
   * while no other thread makes requests, and not while a callback runs: the previous callback is destroyed.
   */
  void on_shortage(std::function<bool(int, std::size_t)> callback);
  /** Sets the function that learns of a request that is about to fail. Set it under the rule of on_shortage. */
  void on_out_of_memory(std::function<void(const cachalot_oom_report&)> callback);

  // ---- Devices: cachalot/devices.hpp ----

  /** The number of devices. */
  int device_count() const;
  /** Describes a device. */
  cachalot_device_info device_info(int device) const;
  /** Throws if the device is lost. */
  void check_health(int device) const;
  /** Lets device `peer` use the memory of `device`. */
  void enable_peer_access(int device, int peer) const;

  // ---- Tags: cachalot/tags.hpp ----

  /** Sets the limits of a tag, with CACHALOT_TAG_LIMITS_INIT at first: cachalot_tag_set_limits. */
  void set_tag_limits(std::uint64_t tag, const cachalot_tag_limits& limits, int device = 0) const;
  /** Removes the limits of a tag: cachalot_tag_set_limits. */
  void remove_tag_limits(std::uint64_t tag, int device = 0) const;
  /** Releases free memory of the pools with a tag: cachalot_tag_trim. */
  void trim_tag(std::uint64_t tag, std::size_t keep_bytes = 0, int device = 0) const;
  /** Returns the memory that the pools of a tag hold: cachalot_get_tag_report. */
  cachalot_tag_report tag_report(std::uint64_t tag, int device = 0) const;

  // ---- Parking: cachalot/parking.hpp ----

  /** Parks the memory of a target; the contents are kept unless the options say otherwise: cachalot_park. */
  void park(const cachalot_park_target& target, const cachalot_park_options& options = CACHALOT_PARK_OPTIONS_INIT,
            int device = 0) const;
  /** Wakes the memory of a target, at the same addresses: cachalot_wake. */
  void wake(const cachalot_park_target& target, int device = 0) const;
  /** Starts to wake the memory of a target: cachalot_wake_start. */
  void wake_start(const cachalot_park_target& target, int device = 0) const;
  /** Waits until the memory of a target is awake: cachalot_wake_wait. */
  void wake_wait(const cachalot_park_target& target, int device = 0) const;
  /** Reports where the memory of a target is: cachalot_get_park_report. */
  cachalot_park_report park_report(const cachalot_park_target& target, int device = 0) const;
  /** Lends the pages of the free blocks of a tag's pools: cachalot_tag_lend. */
  void lend(std::uint64_t tag, int device = 0) const;
  /** Brings lent pages back, before graphs of the tag's pools run on a stream: cachalot_tag_reclaim. */
  void reclaim(std::uint64_t tag, cachalot_stream stream, int device = 0) const;
  /** Lets the default pool serve requests under a parked tag, or not: cachalot_tag_set_fallback. */
  void set_tag_fallback(std::uint64_t tag, bool on, int device = 0) const;
  /** Reports what is on a device, by name: cachalot_get_remaining_memory. */
  cachalot_remaining_memory remaining_memory(int device = 0) const;
  /** Sets how much pinned host memory stays for the next park: cachalot_retain_host_memory. */
  void retain_host_memory(std::uint64_t host_bytes, int device = 0) const;

  // ---- Plans and predictions: cachalot/plan.hpp ----

  /** Predicts the first step of a request, and changes nothing. */
  cachalot_forecast forecast(std::size_t bytes, cachalot_stream stream, int device = 0) const;
  /** Reports whether requests would be served if they were made now, and changes nothing: cachalot_get_fit. */
  cachalot_fit fit(const std::vector<std::size_t>& sizes, cachalot_stream stream, int device = 0) const;
  /** Announces the end of an iteration to the planned policy. */
  void begin_iteration(int device = 0) const;
  /** Ends the active plans: cachalot_end_plans. */
  void end_plans(int device = 0) const;
  /** The progress of the planned policy. */
  cachalot_plan_report plan_report(int device = 0) const;
  /** The report on `tune:auto`. */
  cachalot_tune_report tune_report(int device = 0) const;

  // ---- Diagnosis: cachalot/diagnose.hpp ----

  /** Explains an address at which a kernel has faulted, in sentences: cachalot_explain_address. */
  std::string explain_address(const void* address) const;
  /** A statistic by its name in `torch.cuda.memory_stats()`, or by a name such as `pages.moved_bytes`:
   * cachalot_find_statistic. */
  std::int64_t find_statistic(const std::string& key, int device = 0) const;
  /** The names and the values of all statistics of `find_statistic`: cachalot_visit_statistics. */
  std::vector<std::pair<std::string, std::int64_t>> statistics_by_name(int device = 0) const;
  /** Sets every peak to the current value. */
  void reset_peaks(int device = 0) const;
  /** Sets the accumulated statistics to 0. */
  void reset_accumulated(int device = 0) const;
  /** Sets the function that describes call stacks of a trace, under the rule of on_shortage. */
  void on_stack(std::function<void(cachalot_stack*, cachalot_action)> callback);
  /** Records the latest `capacity` events of a device; 0 stops the recording. */
  void trace_start(std::size_t capacity, int device = 0) const;
  /** Starts the flight recorder: cachalot_recorder_start. */
  void recorder_start(const std::string& options = "") const;
  /** The recorded events, oldest first. */
  std::vector<cachalot_trace_entry> trace(int device = 0) const;
  /** The metrics of every device as OpenMetrics text: cachalot_write_metrics. */
  std::string metrics() const;
  /** Every segment and block, as JSON or as a pickle. */
  std::string snapshot(cachalot_format format = CACHALOT_JSON) const;
  /** Writes every segment and block to a file. */
  void snapshot(const std::string& path) const;

 private:
  using shortage = std::function<bool(int, std::size_t)>;
  using oom = std::function<void(const cachalot_oom_report&)>;
  using mapping = std::function<void(int, void*, std::size_t)>;
  using describer = std::function<void(cachalot_stack*, cachalot_action)>;

  struct destroyer {
    void operator()(cachalot_allocator* handle) const noexcept { detail::report(cachalot_destroy(handle)); }
  };

  // Declared before the handle, so that the callbacks outlive the allocator.
  std::unique_ptr<shortage> shortage_;
  std::unique_ptr<oom> oom_;
  std::unique_ptr<mapping> map_;
  std::unique_ptr<mapping> unmap_;
  std::unique_ptr<describer> describer_;
  std::unique_ptr<cachalot_allocator, destroyer> handle_;
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
  buffer(const host_allocator& owner, std::size_t count, int device = 0);
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
  /** Announces that the work submitted to another stream so far uses the buffer; later work does not delay reuse. */
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

}  // namespace cachalot

#include "cachalot/streams.hpp"
#include "cachalot/blocks.hpp"
#include "cachalot/cache.hpp"
#include "cachalot/devices.hpp"
#include "cachalot/pools.hpp"
#include "cachalot/tags.hpp"
#include "cachalot/parking.hpp"
#include "cachalot/ranges.hpp"
#include "cachalot/plan.hpp"
#include "cachalot/diagnose.hpp"
#include "cachalot/resource.hpp"

#endif
