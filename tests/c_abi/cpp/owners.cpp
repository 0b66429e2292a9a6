// The owning types of cachalot.hpp: moved from, assigned to themselves, empty, and used by two files of a program.
#include <cachalot.hpp>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory_resource>
#include <optional>
#include <thread>

#ifdef SECOND

// The failures that another file of the program has reported to its handler.
int reported_elsewhere(const cachalot::allocator& allocator) {
  static int reported;
  reported = 0;
  const cachalot::failure_handler before =
      cachalot::set_failure_handler([](const cachalot::failure&) noexcept { ++reported; });
  cachalot::block block = allocator.allocate(512, nullptr);
  allocator.free(block.data());
  block.reset();
  cachalot::set_failure_handler(before);
  return reported;
}

#else

#include "../check.hpp"

int reported_elsewhere(const cachalot::allocator& allocator);

static std::atomic<int> reported{0};

template <class T>
constexpr bool moves_without_exceptions =
    std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T> && !std::is_copy_constructible_v<T>;
static_assert(moves_without_exceptions<cachalot::allocator> && moves_without_exceptions<cachalot::host_allocator>);
static_assert(moves_without_exceptions<cachalot::block> && moves_without_exceptions<cachalot::buffer<int>>);
static_assert(moves_without_exceptions<cachalot::range> && moves_without_exceptions<cachalot::private_pool>);
static_assert(moves_without_exceptions<cachalot::exported_page>);
// An exception that threw while it is copied would end the program.
static_assert(std::is_nothrow_copy_constructible_v<cachalot::out_of_memory>);
static_assert(std::is_nothrow_copy_constructible_v<cachalot::error>);

// Hides from the compiler that an object is assigned to itself.
template <class T>
static T& itself(T& object) {
  return object;
}

template <class Call>
static std::optional<cachalot_status> failure_of(Call call) {
  try {
    call();
    return std::nullopt;
  } catch (const cachalot::error& error) {
    return error.status();
  }
}

static cachalot::options simulated() {
  cachalot::options options;
  options.flags = CACHALOT_SIMULATED;
  options.simulated_bytes = 1 << 30;
  return options;
}

static void blocks(const cachalot::allocator& allocator) {
  cachalot::block block = allocator.allocate(1000, nullptr);
  void* const address = block.data();
  block = std::move(itself(block));
  block.swap(block);
  CHECK(block.data() == address && block.size() == 1000);
  cachalot::block other(std::move(block));
  CHECK(!block && block.size() == 0 && other.data() == address);

  // Without memory, nothing is announced: of a moved, a new, a reset block, and of 0 bytes.
  cachalot::block never, none = allocator.allocate(0, nullptr);
  CHECK(!none && none.size() == 0);
  other.reset();
  other.reset();
  const auto stream = reinterpret_cast<cachalot_stream>(std::uintptr_t{64});
  for (const cachalot::block* empty : {&block, &never, &none, &other}) {
    CHECK(!failure_of([&] { empty->record_stream(stream), empty->record_use(stream); }));
  }
  other = allocator.allocate(10, nullptr);
  allocator.free(other.release(), 10);
  CHECK(!other && other.release() == nullptr);

  cachalot::buffer<int> numbers(allocator, 10, nullptr);
  const int* const first = numbers.data();
  numbers = std::move(itself(numbers));
  CHECK(numbers.data() == first && numbers.size() == 10);
  cachalot::buffer<int> moved(std::move(numbers));
  CHECK(numbers.empty() && numbers.data() == nullptr && numbers.size_bytes() == 0 && numbers.begin() == numbers.end());
  CHECK(!failure_of([&] { numbers.record_stream(stream); }));
  // A product that does not fit.
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  for (const std::size_t count : {most, most / sizeof(double), most / sizeof(double) + 1}) {
    CHECK(failure_of([&] { cachalot::buffer<double>(allocator, count, nullptr); }) == CACHALOT_ERROR_TOO_LARGE);
  }
}

static void ranges(const cachalot::allocator& allocator) {
  cachalot::range range(allocator, 64 << 20);
  range = std::move(itself(range));
  CHECK(range && range.size() == 64 << 20);
  cachalot::range moved(std::move(range));
  CHECK(!range && range.data() == nullptr && range.size() == 0);
  CHECK(failure_of([&] { range.commit(0, 2 << 20, nullptr); }) == CACHALOT_ERROR_NULL);
  moved.commit(0, moved.page_bytes(), nullptr);
  moved.reset();
  moved.reset();
  CHECK(failure_of([&] { cachalot::range(allocator, 0); }) == CACHALOT_ERROR_INVALID_ARGUMENT);
  CHECK(failure_of([&] { cachalot::range(allocator, ~std::size_t{0}); }) == CACHALOT_ERROR_TOO_LARGE);
}

// A hold ends with its scope, and holds are counted.
static void holds(const cachalot::allocator& allocator) {
  {
    const cachalot::hold_scope hold(allocator);
    const cachalot::hold_scope again(allocator);
    CHECK(cachalot_hold_end(allocator.get(), 0) == CACHALOT_OK);
    CHECK(cachalot_hold_begin(allocator.get(), 0) == CACHALOT_OK);
  }
  CHECK(cachalot_hold_end(allocator.get(), 0) == CACHALOT_ERROR_INVALID_ARGUMENT);
}

// A route ends with its scope, wherever the object of the pool is by then.
static void scopes(const cachalot::allocator& allocator) {
  const auto is_routed = [&] {
    cachalot::block block = allocator.allocate(100, nullptr), other = allocator.allocate(100, nullptr);
    return allocator.block_at(block.data()).segment_base != allocator.block_at(other.data()).segment_base;
  };
  std::optional<cachalot::private_pool> pool(std::in_place, allocator, 0, CACHALOT_POOL_NO_SPLIT);
  {
    const cachalot::pool_scope scope(*pool, CACHALOT_ROUTE_THREAD);
    CHECK(is_routed());
    const cachalot::private_pool moved(std::move(*pool));
    pool.reset();
    CHECK(is_routed());
  }
  CHECK(!is_routed());
  {
    const cachalot::pool_scope scope(cachalot::private_pool(allocator, 0, CACHALOT_POOL_NO_SPLIT));
    CHECK(is_routed());
  }
  CHECK(!is_routed());
  {
    cachalot::private_pool captured(allocator, 0, CACHALOT_POOL_NO_SPLIT), graph(allocator, 0);
    std::optional<cachalot::capture_scope> scope(std::in_place, captured, nullptr);
    cachalot::private_pool moved(std::move(captured));
    CHECK(is_routed());
    scope.reset();
    CHECK(!is_routed());
    moved.release();
    CHECK(captured.owner() == nullptr && failure_of([&] { captured.release(); }) == CACHALOT_ERROR_NULL);
    CHECK(failure_of([&] { cachalot::pool_scope none(captured); }) == CACHALOT_ERROR_NULL);
    graph = std::move(itself(graph));
    CHECK(graph.owner() == allocator.get());
  }
}

// Callbacks run in the destruction of their allocator, also where another one takes its place.
static void replaced() {
  int pages = 0;
  {
    cachalot::allocator allocator(simulated());
    allocator.on_map([&](int, void*, std::size_t) { ++pages; });
    allocator.on_unmap([&](int, void*, std::size_t) { --pages; });
    cachalot::range range(allocator, 4 << 20);
    range.commit(0, 2 << 20, nullptr);
    range.reset();
    CHECK(pages == 1);
    allocator = cachalot::allocator(simulated());
    CHECK(pages == 0);
    allocator = std::move(itself(allocator));
    CHECK(allocator.get() != nullptr);
    cachalot::allocator moved(std::move(allocator));
    CHECK(allocator.get() == nullptr && failure_of([&] { allocator.malloc(1, nullptr); }) == CACHALOT_ERROR_NULL);
    CHECK(failure_of([&] { allocator.on_map(nullptr); }) == CACHALOT_ERROR_NULL);
    allocator.destroy();
  }
  cachalot::allocator allocator(simulated());
  allocator.on_shortage([](int, std::size_t) -> bool { throw 1; });
  allocator.on_out_of_memory([](const cachalot_oom_report&) { throw std::string("none"); });
  bool ran_out = false;
  try {
    allocator.malloc(std::size_t{2} << 30, nullptr);
  } catch (const std::bad_alloc& error) {
    ran_out = std::strstr(error.what(), "Tried to allocate 2 GiB") != nullptr;
  }
  CHECK(ran_out);
}

// The text of the settings is whole while another thread changes them.
static void settings() {
  const cachalot::allocator allocator(simulated());
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done) {
      allocator.configure("max_split_size_mb:20,garbage_collection_threshold:0.8,roundup_power2_divisions:[256:1,>:8]");
      allocator.configure("max_split_size_mb:200");
    }
  });
  int torn = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string text = allocator.config();
    torn += std::strlen(text.c_str()) != text.size();
  }
  done = true;
  other.join();
  CHECK(torn == 0);
}

class resource final : public cachalot::basic_resource<std::pmr::memory_resource> {
 public:
  explicit resource(const cachalot::allocator& allocator) : basic_resource(allocator, 0, nullptr) {}

 private:
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    const auto* same = dynamic_cast<const resource*>(&other);
    return same != nullptr && is_same(*same);
  }
};

static void resources(const cachalot::allocator& allocator) {
  resource memory(allocator), equal(allocator);
  CHECK(memory == equal);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{1} << 20}) {
    void* const data = memory.allocate(bytes, 256);
    CHECK(data != nullptr && reinterpret_cast<std::uintptr_t>(data) % 256 == 0);
    equal.deallocate(data, bytes, 256);
  }
  bool refused = false;
  try {
    static_cast<void>(memory.allocate(1, 512));
  } catch (const std::bad_alloc&) {
    refused = true;
  }
  CHECK(refused);
}

int main() {
  cachalot::set_failure_handler([](const cachalot::failure& failure) noexcept {
    std::fprintf(stderr, "%s\n", failure.text);
    ++reported;
  });
  {
    const cachalot::allocator allocator(simulated());
    blocks(allocator);
    ranges(allocator);
    holds(allocator);
    scopes(allocator);
    resources(allocator);
    CHECK(reported_elsewhere(allocator) == 1);
    CHECK(allocator.statistics().allocations.current == 0);
  }
  replaced();
  settings();
  CHECK(reported == 0);
  if (failures == 0) {
    std::puts("owners: well");
  }
  return failures == 0 ? 0 : 1;
}

#endif
