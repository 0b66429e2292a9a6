// Uses an installed cachalot from C++.
#include <cachalot.hpp>

#include <cstdio>

int main() {
  cachalot::options options;
  options.flags = CACHALOT_SIMULATED;
  cachalot::allocator allocator(options);
  const cachalot::block block = allocator.allocate(100, nullptr);
  std::printf("cachalot %s\n", cachalot_version_string());
  return allocator.statistics().allocations.current == 1 ? 0 : 1;
}
