/*
 * A MemPool with an allocator of its own, under the settings of the environment: the program supplies the segments of
 * the pool, gets back what it has supplied, and never memory of the driver; the driver's pages serve other requests.
 */
#include "torch.hpp"

#include <set>
#include <vector>

namespace {

/* What the program has supplied and taken back. */
struct Supplier {
  std::set<void *> lent;
  size_t supplied = 0;
  bool is_empty = false;
  bool let_go = false;
};

/* Segments on the host do: nothing of the allocator touches memory. */
constexpr std::align_val_t ALIGNMENT{1 << 12};

extern "C" void *supply(void *supplier, size_t bytes, int device) {
  auto &own = *static_cast<Supplier *>(supplier);
  CHECK(device == 0 && !own.let_go);
  if (own.is_empty) {
    return nullptr;
  }
  ++own.supplied;
  return *own.lent.insert(::operator new(bytes, ALIGNMENT)).first;
}

extern "C" void take_back(void *supplier, void *segment, size_t, int device) {
  auto &own = *static_cast<Supplier *>(supplier);
  CHECK(device == 0 && !own.let_go && own.lent.erase(segment) == 1);
  ::operator delete(segment, ALIGNMENT);
}

extern "C" void let_go(void *supplier) {
  static_cast<Supplier *>(supplier)->let_go = true;
}

struct Segment {
  void *base;
  uint64_t pool;
  bool expandable;
};

extern "C" int visit(void *userdata, const cachalot_torch_segment *segment) {
  static_cast<std::vector<Segment> *>(userdata)->push_back(
      {segment->base, segment->pool.second, segment->expandable != 0});
  return 0;
}

void *allocate(size_t bytes, cudaStream_t stream) {
  void *block = nullptr;
  NEEDED(cachalot_torch_allocate(bytes, 0, stream, &block));
  return block;
}

void release(void *block) {
  cachalot_torch_free(block, 0, 0, nullptr);
}

}  // namespace

int main(int count, char **arguments) {
  const bool maps_pages = count > 2 && std::strcmp(arguments[2], "pages") == 0;
  Driver driver;
  driver.use(0);
  const cudaStream_t stream = driver.stream(), side = driver.stream();
  /* Free memory of the default pool, which a request of 3 MiB could use. */
  release(allocate(40 << 20, stream));
  void *target = allocate(512, stream);
  const uint64_t pages = driver.calls("cuMemMap");
  CHECK((pages > 0) == maps_pages);
  cachalot_allocator *allocator = nullptr;
  NEEDED(cachalot_torch_allocator(&allocator));
  const cachalot_pool pool{0, 7};
  Supplier own;
  NEEDED(cachalot_pool_retain(allocator, 0, pool, 0));
  NEEDED(cachalot_torch_supply_pool(0, pool, supply, take_back, let_go, &own));
  NEEDED(cachalot_torch_begin_allocate_to_pool(0, pool, nullptr, nullptr, nullptr));
  void *small = allocate(1000, stream), *large = allocate(3 << 20, stream), *next = allocate(4 << 20, stream);
  void *shared = allocate(30 << 20, side);
  /* Placed as under the caching policy: 2 MiB for small blocks, 20 MiB for several large ones, else the size. */
  CHECK(own.supplied == 3 && own.lent.count(small) == 1 && own.lent.count(large) == 1 && own.lent.count(shared) == 1);
  CHECK(static_cast<char *>(next) == static_cast<char *>(large) + (3 << 20));
  /* The use by another stream delays the reuse, as in any pool. */
  cachalot_torch_record_stream(shared, stream);
  NEEDED(driver.hold(reinterpret_cast<uint64_t>(stream)));
  NEEDED(driver.fill(reinterpret_cast<uint64_t>(target), 0, 512, stream));
  release(shared);
  void *meanwhile = allocate(30 << 20, side);
  NEEDED(driver.let_on(reinterpret_cast<uint64_t>(stream)));
  NEEDED(driver.synchronize(stream));
  CHECK(meanwhile != shared && allocate(30 << 20, side) == shared);
  CHECK(driver.calls("cuMemMap") == pages);
  own.is_empty = true;
  void *none = nullptr;
  CHECK(cachalot_torch_allocate(60 << 20, 0, side, &none) == CACHALOT_ERROR_OUT_OF_MEMORY);
  CHECK(std::strstr(cachalot_last_error(), "The pool's own allocator would not give 60.00 MiB") != nullptr);
  own.is_empty = false;
  cachalot_torch_end_allocate_to_pool(0, pool);
  void *outside = allocate(3 << 20, stream);
  std::vector<Segment> segments;
  NEEDED(cachalot_torch_segments(visit, &segments));
  for (const Segment &segment : segments) {
    const bool is_own = own.lent.count(segment.base) == 1;
    CHECK(is_own == (segment.pool == 7) && segment.expandable == (maps_pages && !is_own));
  }
  CHECK(cachalot_check_invariants(allocator) == CACHALOT_OK);
  for (void *block : {small, large, next, shared, meanwhile, outside, target}) {
    release(block);
  }
  /* The pool is supplied while it has a user. */
  cachalot_torch_release_pool(0, pool);
  NEEDED(cachalot_torch_begin_allocate_to_pool(0, pool, nullptr, nullptr, nullptr));
  void *later = allocate(50 << 20, stream);
  CHECK(own.lent.count(later) == 1);
  cachalot_torch_end_allocate_to_pool(0, pool);
  release(later);
  cachalot_torch_release_pool(0, pool);
  cachalot_torch_release_pool(0, pool);
  cachalot_torch_reset();
  CHECK(own.lent.empty() && own.let_go && cachalot_check_invariants(allocator) == CACHALOT_OK);
  return failures == 0 ? 0 : 1;
}
