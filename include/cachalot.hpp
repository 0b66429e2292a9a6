// cachalot.hpp: cachalot.h for C++17 and later. Everything is inline over the C functions, which describe what happens.
//
//   cachalot::allocator allocator;
//   cachalot::block block = allocator.allocate(1 << 20, stream);
//   kernel<<<groups, threads, 0, stream>>>(block.as<float>());
//   // Freed at the end of the scope, in the stream's order.
//
// Failures are exceptions: out_of_memory (a std::bad_alloc) or error (a std::runtime_error), each with the status. They
// are thrown and caught on this side of the C functions only; what a callback throws is taken for "nothing was freed".
// Destructors do not throw: what fails there is dropped, as the C functions' last error tells.
//
// Types here own something and can be moved, not copied. An allocator outlives its blocks, pools and resources.
// Threads: as in cachalot.h for const members; moving and destroying is one thread's affair.

#ifndef CACHALOT_HPP
#define CACHALOT_HPP

#include <cachalot.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace cachalot {

// A call that failed, for another reason than want of device memory.
class error : public std::runtime_error {
 public:
  error(cachalot_status status, const char* text, std::uint32_t driver_code)
      : std::runtime_error(text), status_(status), driver_code_(driver_code) {}

  cachalot_status status() const noexcept { return status_; }
  // The driver's own code; 0 if it had no part in the failure.
  std::uint32_t driver_code() const noexcept { return driver_code_; }

 private:
  cachalot_status status_;
  std::uint32_t driver_code_;
};

// A request that failed for want of device memory. `what` is the whole report.
class out_of_memory : public std::bad_alloc {
 public:
  explicit out_of_memory(const char* text) : text_(text) {}

  const char* what() const noexcept override { return text_.what(); }

 private:
  // Holds the text, and can be copied without throwing, as an exception must.
  std::runtime_error text_;
};

// Throws what a status other than CACHALOT_OK means.
inline void check(cachalot_status status) {
  if (status == CACHALOT_OK) {
    return;
  }
  if (status == CACHALOT_ERROR_OUT_OF_MEMORY || status == CACHALOT_ERROR_REJECTED) {
    throw out_of_memory(cachalot_last_error());
  }
  throw error(status, cachalot_last_error(), cachalot_last_driver_code());
}

// How an allocator is made: cachalot_options with owned texts and lists.
struct options {
  std::uint32_t flags = 0;
  std::vector<int> devices;     // the driver's ordinals; empty: every device, or one simulated
  std::vector<void*> contexts;  // empty, or one for each of `devices`; null ones mean the primary context
  std::string config;           // in the syntax of PYTORCH_CUDA_ALLOC_CONF
  std::uint64_t limit_bytes = 0;
  std::uint64_t simulated_bytes = 0;
};

class allocator;

// A block that is freed at the end of its life, on its own stream's order.
class block {
 public:
  block() noexcept = default;
  block(block&& other) noexcept { swap(other); }
  block& operator=(block&& other) noexcept {
    block(std::move(other)).swap(*this);
    return *this;
  }
  ~block() { reset(); }

  // Null for a block of no bytes.
  void* data() const noexcept { return data_; }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  // As requested.
  std::size_t size() const noexcept { return size_; }
  cachalot_stream stream() const noexcept { return stream_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

  // Announces that work queued on another stream uses the block.
  void record_stream(cachalot_stream stream) const { check(cachalot_record_stream(allocator_, data_, stream)); }

  // Frees it now.
  void reset() noexcept {
    if (data_ != nullptr) {
      cachalot_free_sized(allocator_, data_, size_);
    }
    forget();
  }

  // Gives it to the caller, who frees it with cachalot_free.
  void* release() noexcept {
    void* const data = data_;
    forget();
    return data;
  }

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

// An allocator, destroyed at the end of its life.
class allocator {
 public:
  allocator() : allocator(options()) {}

  explicit allocator(const options& wanted) {
    if (!wanted.contexts.empty() && wanted.contexts.size() != wanted.devices.size()) {
      throw std::invalid_argument("cachalot::options: one context for each device, or none");
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

  // For the C functions.
  cachalot_allocator* get() const noexcept { return handle_.get(); }

  // Ends it now, and tells what cachalot_destroy tells. Every block is to be freed before.
  void destroy() { check(cachalot_destroy(handle_.release())); }

  int device_count() const {
    int count = 0;
    check(cachalot_device_count(get(), &count));
    return count;
  }

  cachalot_device device_info(int device) const {
    cachalot_device info = CACHALOT_DEVICE_INIT;
    check(cachalot_device_info(get(), device, &info));
    return info;
  }

  // Throws if the device cannot be used any more.
  void check_health(int device) const { check(cachalot_health(get(), device)); }
  void enable_peer_access(int device, int peer) const { check(cachalot_enable_peer_access(get(), device, peer)); }

  // ---- Memory ----

  // A block for a stream, on device 0 unless another is named.
  block allocate(std::size_t bytes, cachalot_stream stream, int device = 0) const {
    return block(get(), malloc(bytes, stream, device), bytes, stream);
  }

  // The same as plain addresses.
  void* malloc(std::size_t bytes, cachalot_stream stream, int device = 0) const {
    void* data = nullptr;
    check(cachalot_malloc(get(), device, bytes, stream, &data));
    return data;
  }
  void free(void* data) const { check(cachalot_free(get(), data)); }
  void free(void* data, std::size_t bytes) const { check(cachalot_free_sized(get(), data, bytes)); }
  void record_stream(void* data, cachalot_stream stream) const { check(cachalot_record_stream(get(), data, stream)); }
  void stream_destroyed(int device, cachalot_stream stream) const {
    check(cachalot_stream_destroyed(get(), device, stream));
  }

  cachalot_block base_of(const void* address) const {
    cachalot_block found = CACHALOT_BLOCK_INIT;
    check(cachalot_base_of(get(), address, &found));
    return found;
  }

  cachalot_outlook forecast(std::size_t bytes, cachalot_stream stream, int device = 0) const {
    cachalot_outlook outlook = CACHALOT_OUTLOOK_INIT;
    check(cachalot_forecast(get(), device, bytes, stream, &outlook));
    return outlook;
  }

  // ---- The cache ----

  void process_events(int device = 0) const { check(cachalot_process_events(get(), device)); }
  void empty_cache(int device = 0) const { check(cachalot_empty_cache(get(), device)); }
  void trim(std::size_t keep_bytes, int device = 0) const { check(cachalot_trim(get(), device, keep_bytes)); }
  void set_caching(bool on, int device = 0) const { check(cachalot_set_caching(get(), device, on)); }
  void set_limit(std::uint64_t bytes, int device = 0) const { check(cachalot_set_limit(get(), device, bytes)); }
  void set_memory_fraction(double fraction, int device = 0) const {
    check(cachalot_set_memory_fraction(get(), device, fraction));
  }
  void configure(const std::string& config) const { check(cachalot_configure(get(), config.c_str())); }

  std::string config(int device = 0) const {
    std::size_t length = 0;
    check(cachalot_config(get(), device, nullptr, 0, &length));
    std::string text(length, '\0');
    // A string has room for the NUL that ends it.
    check(cachalot_config(get(), device, &text[0], length + 1, nullptr));
    return text;
  }

  // ---- Plans ----

  void iteration(int device = 0) const { check(cachalot_iteration(get(), device)); }

  cachalot_plan_report planned(int device = 0) const {
    cachalot_plan_report report = CACHALOT_PLAN_REPORT_INIT;
    check(cachalot_planned(get(), device, &report));
    return report;
  }

  // ---- Statistics ----

  cachalot_statistics stats(int device = 0) const {
    cachalot_statistics statistics = CACHALOT_STATISTICS_INIT;
    check(cachalot_stats(get(), device, &statistics));
    return statistics;
  }

  std::int64_t stat(const std::string& key, int device = 0) const {
    std::int64_t value = 0;
    check(cachalot_stat(get(), device, key.c_str(), &value));
    return value;
  }

  void reset_peaks(int device = 0) const { check(cachalot_reset_peaks(get(), device)); }
  void reset_accumulated(int device = 0) const { check(cachalot_reset_accumulated(get(), device)); }

  // ---- Callbacks ----

  // Who frees memory when it runs short: given the device and the bytes, says whether anything was freed. Not to be
  // changed while requests are being made, since what it replaces is destroyed.
  void on_shortage(std::function<bool(int, std::size_t)> callback) {
    auto kept = std::make_unique<shortage>(std::move(callback));
    check(cachalot_on_shortage(get(), *kept ? &ask : nullptr, kept.get()));
    shortage_ = std::move(kept);
  }

  // Who is told that a request is about to fail. Otherwise as on_shortage.
  void on_out_of_memory(std::function<void(const cachalot_oom_report&)> callback) {
    auto kept = std::make_unique<oom>(std::move(callback));
    check(cachalot_on_out_of_memory(get(), *kept ? &tell : nullptr, kept.get()));
    oom_ = std::move(kept);
  }

  // Who describes the stacks of a trace, with cachalot_stack_push. Otherwise as on_shortage.
  void on_stack(std::function<void(cachalot_stack*, cachalot_action)> callback) {
    auto kept = std::make_unique<describer>(std::move(callback));
    check(cachalot_on_stack(get(), *kept ? &describe : nullptr, kept.get()));
    describer_ = std::move(kept);
  }

  // ---- Looking inside ----

  void start_trace(std::size_t capacity, int device = 0) const { check(cachalot_trace_start(get(), device, capacity)); }

  std::vector<cachalot_trace_entry> trace(int device = 0) const {
    collected<std::vector<cachalot_trace_entry>> entries;
    entries.check(cachalot_trace_for_each(get(), device, &collect_entry, &entries));
    return std::move(entries.value);
  }

  // Every segment and block, as JSON or as a pickle.
  std::string snapshot(cachalot_format format = CACHALOT_JSON) const {
    collected<std::string> text;
    text.check(cachalot_snapshot_as(get(), format, &collect_text, &text));
    return std::move(text.value);
  }
  void snapshot(const std::string& path) const { check(cachalot_snapshot_to_file(get(), path.c_str())); }

 private:
  using shortage = std::function<bool(int, std::size_t)>;
  using oom = std::function<void(const cachalot_oom_report&)>;
  using describer = std::function<void(cachalot_stack*, cachalot_action)>;

  // What a callback gathers. What it throws waits here until the C function has returned.
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
    void operator()(cachalot_allocator* handle) const noexcept { cachalot_destroy(handle); }
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
      // The request fails all the same, and says why.
    }
  }

  static void describe(void* userdata, cachalot_stack* stack, cachalot_action action) noexcept {
    try {
      (*static_cast<describer*>(userdata))(stack, action);
    } catch (...) {
      // The frames that were described count.
    }
  }

  static int collect_entry(void* userdata, const cachalot_trace_entry* entry) noexcept {
    auto& entries = *static_cast<collected<std::vector<cachalot_trace_entry>>*>(userdata);
    return entries.add([entry](auto& value) { value.push_back(*entry); });
  }

  static int collect_text(void* userdata, const char* text, std::size_t bytes) noexcept {
    auto& whole = *static_cast<collected<std::string>*>(userdata);
    return whole.add([text, bytes](auto& value) { value.append(text, bytes); });
  }

  // Before the handle, so that they outlive it.
  std::unique_ptr<shortage> shortage_;
  std::unique_ptr<oom> oom_;
  std::unique_ptr<describer> describer_;
  std::unique_ptr<cachalot_allocator, destroyer> handle_;
};

// A private pool with one user, this value, who leaves at the end of its life.
class private_pool {
 public:
  private_pool(const allocator& owner, int device, std::uint32_t flags = 0) : allocator_(owner.get()), device_(device) {
    check(cachalot_pool_create(allocator_, device_, flags, &pool_));
  }
  private_pool(private_pool&& other) noexcept
      : allocator_(std::exchange(other.allocator_, nullptr)), device_(other.device_), pool_(other.pool_) {}
  private_pool& operator=(private_pool&& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(device_, other.device_);
    std::swap(pool_, other.pool_);
    return *this;
  }
  ~private_pool() {
    if (allocator_ != nullptr) {
      cachalot_pool_release(allocator_, device_, pool_);
    }
  }

  cachalot_pool name() const noexcept { return pool_; }
  int device() const noexcept { return device_; }
  const cachalot_allocator* owner() const noexcept { return allocator_; }

  // Another user has left: a graph that was captured into the pool and is destroyed, or what a pool_scope left behind.
  void release() const { check(cachalot_pool_release(allocator_, device_, pool_)); }

 private:
  const cachalot_allocator* allocator_;
  int device_;
  cachalot_pool pool_ = {0, 0};
};

// Leads requests into a pool while it lives. The user that it adds to the pool is taken away with it.
class pool_scope {
 public:
  // All requests of the pool's device, or of the calling thread.
  explicit pool_scope(const private_pool& pool, cachalot_route route = CACHALOT_ROUTE_ALL)
      : pool_scope(pool, route, nullptr) {}
  // Those of one stream.
  pool_scope(const private_pool& pool, cachalot_stream stream) : pool_scope(pool, CACHALOT_ROUTE_STREAM, stream) {}
  pool_scope(const pool_scope&) = delete;
  pool_scope& operator=(const pool_scope&) = delete;
  ~pool_scope() {
    cachalot_pool_end(pool_.owner(), pool_.device(), pool_.name());
    cachalot_pool_release(pool_.owner(), pool_.device(), pool_.name());
  }

 private:
  pool_scope(const private_pool& pool, cachalot_route route, cachalot_stream stream) : pool_(pool) {
    check(cachalot_pool_begin(pool_.owner(), pool_.device(), pool_.name(), route, stream));
  }

  const private_pool& pool_;
};

// Leads a stream's requests into a pool while a graph is captured. The graph remains a user of the pool: call
// private_pool::release when it has been destroyed.
class capture_scope {
 public:
  capture_scope(const private_pool& pool, cachalot_stream stream) : pool_(pool) {
    check(cachalot_capture_begin(pool_.owner(), pool_.device(), pool_.name(), CACHALOT_ROUTE_STREAM, stream));
  }
  capture_scope(const capture_scope&) = delete;
  capture_scope& operator=(const capture_scope&) = delete;
  ~capture_scope() { cachalot_capture_end(pool_.owner(), pool_.device(), pool_.name()); }

 private:
  const private_pool& pool_;
};

// A memory resource of one device and one stream, for libraries that have such a base class.
//
//   cachalot::resource                                            is a std::pmr::memory_resource
//   cachalot::basic_resource<thrust::mr::memory_resource<P>, P>   is Thrust's, with P = thrust::cuda::pointer<void>
//
// Blocks are used and freed in the order of the stream. The memory is the device's: containers that touch their
// elements on the host cannot use it.
template <class Base, class Pointer = void*>
class basic_resource : public Base {
 public:
  basic_resource(const allocator& owner, int device, cachalot_stream stream)
      : allocator_(owner.get()), device_(device), stream_(stream) {}

  // Public because Thrust calls it past the base class.
  Pointer do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (alignment > alignment_bytes) {
      throw std::bad_alloc();
    }
    void* data = nullptr;
    // Containers tell blocks of no bytes apart too.
    check(cachalot_malloc(allocator_, device_, bytes == 0 ? 1 : bytes, stream_, &data));
    return Pointer(data);
  }

  void do_deallocate(Pointer data, std::size_t bytes, std::size_t) noexcept override {
    cachalot_free_sized(allocator_, plain(data), bytes == 0 ? 1 : bytes);
  }

 protected:
  // Whether a block of one can be given back to the other.
  bool is_same(const basic_resource& other) const noexcept {
    return other.allocator_ == allocator_ && other.device_ == device_ && other.stream_ == stream_;
  }

 private:
  // What every block is aligned to.
  static constexpr std::size_t alignment_bytes = 512;

  static void* plain(void* data) noexcept { return data; }
  template <class Fancy>
  static void* plain(const Fancy& data) noexcept {
    return static_cast<void*>(data.get());
  }

  const cachalot_allocator* allocator_;
  int device_;
  cachalot_stream stream_;
};

class resource final : public basic_resource<std::pmr::memory_resource> {
 public:
  using basic_resource::basic_resource;

 private:
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    const auto* same = dynamic_cast<const resource*>(&other);
    return same != nullptr && is_same(*same);
  }
};

}  // namespace cachalot

#endif
