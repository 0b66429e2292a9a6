// The C++ interface of cachalot: blocks and buffers that free themselves, exceptions, the failure handler, callbacks,
// private pools, and a resource with another library's base class.
//
//   resources [--simulated]
//
// Nothing here touches the memory, so it runs on simulated devices too.
#include <cachalot.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#define EXPECT(condition)                                                                \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                      \
    }                                                                                    \
  } while (false)

static_assert(std::is_nothrow_move_constructible_v<cachalot::block> && !std::is_copy_constructible_v<cachalot::block>);
static_assert(std::is_nothrow_move_constructible_v<cachalot::allocator> &&
              !std::is_copy_assignable_v<cachalot::allocator>);

static_assert(std::is_nothrow_move_assignable_v<cachalot::buffer<float>> &&
              !std::is_copy_constructible_v<cachalot::buffer<float>>);

namespace {

void blocks(const cachalot::allocator& allocator, cachalot_stream stream) {
  cachalot::block block = allocator.allocate(1000, stream);
  EXPECT(block && block.size() == 1000 && allocator.block_at(block.as<char>() + 999).base == block.data());
  cachalot::block moved = std::move(block);
  EXPECT(!block && moved && allocator.statistics().allocations.current == 1);
  block = std::move(moved);
  EXPECT(allocator.statistics().allocations.current == 1);
  void* const released = block.release();
  EXPECT(allocator.statistics().allocations.current == 1);
  allocator.free(released, 1000);
  EXPECT(allocator.statistics().allocations.current == 0);
  EXPECT(!allocator.allocate(0, stream));
  // A freed block is cached, and serves the next request.
  EXPECT(allocator.forecast(1000, stream).outcome == CACHALOT_WOULD_HIT);
  EXPECT(allocator.allocate(1000, stream).data() == released);
}

void buffers(const cachalot::allocator& allocator, cachalot_stream stream) {
  cachalot::buffer<float> numbers(allocator, 1000, stream);
  EXPECT(numbers.size() == 1000 && numbers.size_bytes() == 4000 && numbers.stream() == stream && !numbers.empty());
  EXPECT(numbers.begin() == numbers.data() && numbers.end() == numbers.data() + 1000);
  EXPECT(allocator.block_at(numbers.data()).requested_bytes == 4000);
  cachalot::buffer<float> moved = std::move(numbers);
  EXPECT(numbers.empty() && numbers.data() == nullptr && moved.size() == 1000);
  moved = cachalot::buffer<float>(allocator, 10, stream);
  EXPECT(moved.size() == 10 && allocator.statistics().allocations.current == 1);
  float* const released = moved.release();
  EXPECT(moved.empty() && allocator.statistics().allocations.current == 1);
  allocator.free(released, 10 * sizeof(float));
  EXPECT(allocator.statistics().allocations.current == 0);
  bool thrown = false;
  try {
    // The product of the length and the size has more than 64 bits.
    cachalot::buffer<double> never(allocator, SIZE_MAX / 4, stream);
  } catch (const cachalot::error& error) {
    thrown = error.status() == CACHALOT_ERROR_TOO_LARGE;
  }
  EXPECT(thrown);
}

// What the handler below has learned. A handler is a plain function, so it has no place of its own.
cachalot_status reported = CACHALOT_OK;
std::size_t reported_bytes = 0;

void failures(const cachalot::allocator& allocator, cachalot_stream stream) {
  const auto before = cachalot::set_failure_handler([](const cachalot::failure& failure) noexcept {
    reported = failure.status;
    reported_bytes = failure.bytes;
    EXPECT(std::strlen(failure.text) > 0);
  });
  EXPECT(before == nullptr);
  {
    const cachalot::block block = allocator.allocate(1000, stream);
    // A mistake: the block's destructor will free the block a second time.
    allocator.free(block.data());
  }
  EXPECT(reported == CACHALOT_ERROR_INVALID_POINTER && reported_bytes == 1000);
  {
    cachalot::options simulated;
    simulated.flags = CACHALOT_SIMULATED;
    cachalot::allocator ends_early(simulated);
    EXPECT(ends_early.malloc(1, stream) != nullptr);
  }
  EXPECT(reported == CACHALOT_ERROR_STILL_HELD);
  EXPECT(cachalot::set_failure_handler(before) != nullptr);
}

void exceptions(const cachalot::allocator& allocator, cachalot_stream stream) {
  bool thrown = false;
  try {
    allocator.free(&thrown);
  } catch (const cachalot::error& error) {
    thrown = error.status() == CACHALOT_ERROR_INVALID_POINTER && std::strstr(error.what(), "pointer") != nullptr;
  }
  EXPECT(thrown);
  thrown = false;
  allocator.set_limit(64 << 20);
  try {
    allocator.allocate(65 << 20, stream);
  } catch (const std::bad_alloc& error) {
    const std::bad_alloc& kept = error;
    thrown = std::strstr(kept.what(), "Tried to allocate") != nullptr;
  }
  allocator.set_limit(CACHALOT_NO_LIMIT);
  EXPECT(thrown);
  thrown = false;
  try {
    cachalot::options wrong;
    wrong.config = "nonsense:1";
    cachalot::allocator never(wrong);
  } catch (const cachalot::error& error) {
    thrown = error.status() == CACHALOT_ERROR_INVALID_CONFIG;
  }
  EXPECT(thrown);
}

void callbacks(cachalot::allocator& allocator, cachalot_stream stream) {
  allocator.empty_cache();
  allocator.set_limit(64 << 20);
  cachalot::block kept = allocator.allocate(40 << 20, stream);
  int asked = 0, told = 0;
  allocator.on_shortage([&](int device, std::size_t bytes) {
    EXPECT(device == 0 && bytes >= 40u << 20);
    ++asked;
    kept.reset();
    return true;
  });
  allocator.on_out_of_memory([&](const cachalot_oom_report& report) {
    EXPECT(report.requested_bytes == 80u << 20 && report.limit_bytes == 64u << 20 && std::strlen(report.text) > 100);
    ++told;
    throw std::runtime_error("goes no further than the library's edge");
  });
  // The callback frees what is in the way.
  cachalot::block served = allocator.allocate(40 << 20, stream);
  EXPECT(asked == 1 && told == 0 && !kept && served);
  bool failed = false;
  try {
    allocator.allocate(80 << 20, stream);
  } catch (const cachalot::out_of_memory&) {
    failed = true;
  }
  EXPECT(failed && asked == 2 && told == 1);
  allocator.on_shortage(nullptr);
  allocator.on_out_of_memory(nullptr);
  allocator.set_limit(CACHALOT_NO_LIMIT);
}

void pools(const cachalot::allocator& allocator, cachalot_stream stream) {
  cachalot::private_pool pool(allocator, 0);
  void* const outside = allocator.allocate(1 << 20, stream).data();
  {
    cachalot::pool_scope scope(pool, stream);
    const cachalot::block inside = allocator.allocate(1 << 20, stream);
    EXPECT(inside.data() != outside);
  }
  EXPECT(allocator.allocate(1 << 20, stream).data() == outside);
  { cachalot::capture_scope scope(pool, stream); }
  std::uint32_t users = 0;
  cachalot::check(cachalot_get_pool_users(allocator.get(), 0, pool.name(), &users));
  EXPECT(users == 2);
  pool.release();
}

// The base class of a library that takes memory resources, as Thrust's is.
struct library_resource {
  virtual ~library_resource() = default;
  virtual void* do_allocate(std::size_t bytes, std::size_t alignment) = 0;
  virtual void do_deallocate(void* data, std::size_t bytes, std::size_t alignment) noexcept = 0;
};

void resources(const cachalot::allocator& allocator, cachalot_stream stream) {
  cachalot::basic_resource<library_resource> memory(allocator, 0, stream);
  library_resource& any = memory;
  void* const numbers = any.do_allocate(1000 * sizeof(double), alignof(double));
  EXPECT(allocator.block_at(numbers).requested_bytes == 1000 * sizeof(double));
  any.do_deallocate(numbers, 1000 * sizeof(double), alignof(double));
  void* const nothing = any.do_allocate(0, 1);
  EXPECT(nothing != nullptr);
  any.do_deallocate(nothing, 0, 1);
  bool refused = false;
  try {
    static_cast<void>(any.do_allocate(1, 512));
  } catch (const std::bad_alloc&) {
    refused = true;
  }
  EXPECT(refused && allocator.statistics().allocations.current == 0);
}

void inside(cachalot::allocator& allocator, cachalot_stream stream) {
  int described = 0;
  allocator.on_stack([&](cachalot_stack* stack, cachalot_action) {
    cachalot_stack_push(stack, "inside", __FILE__, __LINE__);
    ++described;
  });
  allocator.trace_start(100);
  const cachalot::block block = allocator.allocate(1000, stream);
  const auto entries = allocator.trace();
  EXPECT(!entries.empty() && entries.back().action == CACHALOT_ACTION_ALLOC && entries.back().bytes == 1000);
  EXPECT(described == 1 && allocator.snapshot().find("\"name\":\"inside\"") != std::string::npos);
  EXPECT(allocator.snapshot(CACHALOT_PICKLE).substr(0, 3) == "\x80\x02}");
  allocator.on_stack(nullptr);
  allocator.trace_start(0);
  EXPECT(allocator.trace().empty());
  const std::string json = allocator.snapshot();
  EXPECT(json.front() == '{' && json.find("\"active_allocated\"") != std::string::npos);
  const cachalot_fit fit = allocator.fit({std::size_t{1} << 20, std::size_t{2} << 20}, stream);
  EXPECT(fit.served == 2 && fit.bound == CACHALOT_BOUND_NONE);
  const std::string metrics = allocator.metrics();
  EXPECT(metrics.find("\ncachalot_allocated_blocks{device=\"0\"} 1\n") != std::string::npos);
  EXPECT(metrics.substr(metrics.size() - 6) == "# EOF\n");
  allocator.configure("max_split_size_mb:64");
  EXPECT(allocator.config() == "max_split_size_mb:64");
  EXPECT(allocator.find_statistic("allocation.all.current") == 1);
  EXPECT(allocator.find_statistic("pages.moved_bytes") == 0);
  const auto by_name = allocator.statistics_by_name();
  EXPECT(std::find(by_name.begin(), by_name.end(), std::pair<std::string, std::int64_t>("allocation.all.current", 1)) !=
         by_name.end());
  EXPECT(allocator.device_info(0).reserved_bytes > 0);
}

}  // namespace

int main(int argc, char** argv) {
  cachalot::options wanted;
  if (argc > 1 && std::strcmp(argv[1], "--simulated") == 0) {
    wanted.flags = CACHALOT_SIMULATED;
  }
  cachalot::allocator allocator(wanted);
  const cachalot_stream stream = nullptr;
  blocks(allocator, stream);
  buffers(allocator, stream);
  failures(allocator, stream);
  exceptions(allocator, stream);
  callbacks(allocator, stream);
  pools(allocator, stream);
  resources(allocator, stream);
  inside(allocator, stream);
  std::printf("resources: %d devices, %lld blocks were allocated\n", allocator.device_count(),
              static_cast<long long>(allocator.statistics().allocations.allocated));
  cachalot::allocator moved = std::move(allocator);
  moved.destroy();
  return 0;
}
