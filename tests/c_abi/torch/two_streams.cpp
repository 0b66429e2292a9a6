/*
 * What the driver is asked for a block that two streams use: the calls of a cycle of request, use and free, as
 * benches/gpu/streams.cpp makes them. The first argument is the configuration, the others are pairs of a function and the
 * most calls of it in 1000 cycles.
 */
#include "torch.hpp"

#include <cachalot.h>

int main(int count, char **arguments) {
  constexpr int CYCLES = 4000;
  const Driver driver;
  driver.use(0);
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  options.config = arguments[1];
  // As under PyTorch, which destroys no stream.
  options.flags = CACHALOT_STREAMS_REPORTED;
  cachalot_allocator *allocator = nullptr;
  NEEDED(cachalot_create(&options, &allocator));
  const cachalot_stream own = reinterpret_cast<cachalot_stream>(driver.stream());
  const cachalot_stream other = reinterpret_cast<cachalot_stream>(driver.stream());
  const auto cycles = [&] {
    for (int cycle = 0; cycle < CYCLES; ++cycle) {
      void *block = nullptr;
      NEEDED(cachalot_malloc(allocator, 0, 4096 + size_t{65536} * (cycle % 16), own, &block));
      NEEDED(cachalot_record_stream(allocator, block, other));
      NEEDED(cachalot_free(allocator, block));
    }
  };
  cycles();
  std::map<std::string, uint64_t> before;
  for (int at = 2; at + 1 < count; at += 2) {
    before[arguments[at]] = driver.calls(arguments[at]);
  }
  cycles();
  for (int at = 2; at + 1 < count; at += 2) {
    const double calls = static_cast<double>(driver.calls(arguments[at]) - before[arguments[at]]) * 1000 / CYCLES;
    std::printf("%s %.0f\n", arguments[at], calls);
    CHECK(calls <= std::atof(arguments[at + 1]));
  }
  CHECK(cachalot_check_invariants(allocator) == CACHALOT_OK);
  NEEDED(cachalot_destroy(allocator));
  return failures == 0 ? 0 : 1;
}
