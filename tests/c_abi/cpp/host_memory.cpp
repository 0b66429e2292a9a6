// Host memory from C++: owners, containers of the standard library, and failures.
#include "../check.hpp"

#include <cachalot.hpp>

#include <cstdio>
#include <cstring>
#include <memory_resource>
#include <numeric>
#include <vector>

// Memory of the host for containers that touch their elements.
class host_resource final : public cachalot::basic_resource<std::pmr::memory_resource> {
 public:
  explicit host_resource(const cachalot::host_allocator &host) : basic_resource(host, 0, nullptr) {}

 private:
  bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }
};

int main() {
  cachalot::set_failure_handler(
      [](const cachalot::failure &failure) noexcept { std::fprintf(stderr, "%s\n", failure.text), ++failures; });
  cachalot::options options;
  options.devices = {0};
  options.limit_bytes = 64 << 20;
  cachalot::host_allocator host(options);
  {
    cachalot::buffer<int> numbers(host, 1 << 20);
    std::iota(numbers.begin(), numbers.end(), 0);
    CHECK(numbers.data()[(1 << 20) - 1] == (1 << 20) - 1);
    CHECK(numbers.stream() == nullptr);
    numbers.record_stream(nullptr);
    cachalot::buffer<int> moved(std::move(numbers));
    CHECK(numbers.empty() && moved.size_bytes() == 4 << 20);
    cachalot::block block = host.allocate(100);
    std::memset(block.data(), 1, block.size());
    void *const plain = host.malloc(1000);
    host.free(plain, 1000);
  }
  {
    host_resource resource(host);
    std::pmr::vector<double> values(&resource);
    for (int number = 0; number < 100000; ++number) {
      values.push_back(number);
    }
    CHECK(values[99999] == 99999.0);
  }
  try {
    cachalot::buffer<char> too_much(host, std::size_t{65} << 20);
    CHECK(!"an exception was expected");
  } catch (const cachalot::out_of_memory &) {
  }
  CHECK(host.statistics().allocations.current == 0);
  host.empty_cache();
  CHECK(host.statistics().reserved_bytes.current == 0);
  host.destroy();
  if (failures == 0) {
    std::puts("host_memory: well");
  }
  return failures == 0 ? 0 : 1;
}
