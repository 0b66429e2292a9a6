/*
 * What a whole allocator of PyTorch takes from the library: events as they happen, segments as values, pools whose flags
 * change, and blocks at chosen addresses.
 */
#include "torch.hpp"

#include <array>
#include <new>
#include <string>
#include <thread>
#include <vector>

static Driver *cuda;

struct Seen {
  cachalot_action action;
  uint64_t address;
  uint64_t bytes;
  uint64_t pool;
  std::thread::id thread;
};

static std::vector<Seen> seen;

extern "C" void on_event(void *userdata, const cachalot_torch_event *event) {
  CHECK(userdata == &seen && event->struct_size == sizeof *event && event->device == 0 && event->pool.first == 0);
  seen.push_back({event->action, event->address, event->bytes, event->pool.second, std::this_thread::get_id()});
}

struct Segment {
  cachalot_torch_segment head;
  std::vector<cachalot_torch_block> blocks;
};

extern "C" int visit(void *userdata, const cachalot_torch_segment *segment) {
  static_cast<std::vector<Segment> *>(userdata)->push_back(
      {*segment, {segment->blocks, segment->blocks + segment->block_count}});
  return 0;
}

static std::vector<Segment> segments() {
  std::vector<Segment> found;
  NEEDED(cachalot_torch_segments(visit, &found));
  return found;
}

/* The name of a pool, and its bytes in segments of small and of large blocks. */
using Reserved = std::array<uint64_t, 3>;

static std::vector<Reserved> reserved() {
  std::vector<Reserved> found;
  const auto add = [](void *userdata, cachalot_pool pool, uint64_t small, uint64_t large) {
    static_cast<std::vector<Reserved> *>(userdata)->push_back({pool.second, small, large});
    return 0;
  };
  NEEDED(cachalot_torch_pools(0, add, &found));
  return found;
}

static void *allocate(size_t bytes, cudaStream_t stream) {
  void *block = nullptr;
  NEEDED(cachalot_torch_allocate(bytes, 0, stream, &block));
  return block;
}

static void release(void *block) {
  cachalot_torch_free(block, 0, 0, nullptr);
}

/* The events of one block, in their order, on the thread that causes them, with the pool. */
static void events(cudaStream_t stream) {
  CHECK(cachalot_torch_on_event(on_event, &seen) == CACHALOT_OK);
  void *block = allocate(1000, stream);
  release(block);
  const std::vector<cachalot_action> wanted{CACHALOT_ACTION_SEGMENT_ALLOC, CACHALOT_ACTION_ALLOC,
                                            CACHALOT_ACTION_FREE_REQUESTED, CACHALOT_ACTION_FREE_COMPLETED};
  CHECK(seen.size() == wanted.size());
  for (size_t event = 0; event < seen.size() && event < wanted.size(); ++event) {
    CHECK(seen[event].action == wanted[event] && seen[event].thread == std::this_thread::get_id());
    CHECK(seen[event].pool == 0 && seen[event].address == reinterpret_cast<uint64_t>(block));
    CHECK(seen[event].bytes == (event == 0 ? 2 << 20 : 1000));
  }
  /* A recorded trace and the events are independent of each other. */
  cachalot_allocator *allocator = nullptr;
  NEEDED(cachalot_torch_allocator(&allocator));
  NEEDED(cachalot_trace_start(allocator, 0, 100));
  NEEDED(cachalot_trace_start(allocator, 0, 0));
  release(allocate(1000, stream));
  CHECK(seen.size() == 7);
  NEEDED(cachalot_pool_retain(allocator, 0, {0, 5}, 0));
  CHECK(cachalot_torch_begin_allocate_to_pool(0, {0, 5}, nullptr, nullptr, nullptr) == CACHALOT_OK);
  release(allocate(1000, stream));
  cachalot_torch_end_allocate_to_pool(0, {0, 5});
  CHECK(seen.size() == 11 && seen[7].pool == 5 && seen[10].pool == 5);
  cachalot_torch_release_pool(0, {0, 5});
  cachalot_torch_release_pool(0, {0, 5});
  CHECK(cachalot_torch_on_event(nullptr, nullptr) == CACHALOT_OK);
  release(allocate(1000, stream));
  CHECK(seen.size() == 11);
  cachalot_torch_reset();
}

/* Segments have the figures of their blocks. */
static void values(cudaStream_t stream) {
  void *small = allocate(1000, stream), *large = allocate(3 << 20, stream);
  const std::vector<Segment> all = segments();
  CHECK(all.size() == 2);
  /* The small segment was obtained first. */
  CHECK((all[0].head.number < all[1].head.number) == (all[0].head.large == 0));
  for (const Segment &segment : all) {
    const bool is_large = segment.head.large != 0;
    CHECK(segment.head.struct_size == sizeof segment.head && segment.head.device == 0 && segment.head.expandable == 0);
    CHECK(segment.head.bytes == (is_large ? 20u << 20 : 2u << 20) && segment.blocks.size() == 2);
    CHECK((segment.head.stream_id & ((uint64_t{1} << 48) - 1)) == reinterpret_cast<uint64_t>(stream));
    const cachalot_torch_block &first = segment.blocks[0], &rest = segment.blocks[1];
    CHECK(first.base == (is_large ? large : small) && first.allocated == 1 && first.active == 1);
    CHECK(first.requested_bytes == (is_large ? 3u << 20 : 1000u) && rest.allocated == 0 && rest.active == 0);
    CHECK(first.bytes + rest.bytes == segment.head.bytes);
  }
  CHECK(cachalot_torch_segments(nullptr, nullptr) == CACHALOT_ERROR_NULL);
  const auto stop = [](void *, const cachalot_torch_segment *) { return 1; };
  CHECK(cachalot_torch_segments(stop, nullptr) == CACHALOT_ERROR_STOPPED);
  release(small);
  release(large);
  cachalot_torch_reset();
}

/* A pool goes back to an earlier state, and takes options while it is in use. */
static void pools(cudaStream_t stream) {
  const cachalot_pool pool{0, 6};
  cachalot_allocator *allocator = nullptr;
  NEEDED(cachalot_torch_allocator(&allocator));
  CHECK(cachalot_torch_set_pool_flags(0, pool, 0) == CACHALOT_ERROR_UNKNOWN_POOL);
  NEEDED(cachalot_pool_retain(allocator, 0, pool, 0));
  CHECK(cachalot_torch_set_pool_flags(0, pool, 0x40) == CACHALOT_ERROR_INVALID_ARGUMENT);
  NEEDED(cachalot_torch_begin_allocate_to_pool(0, pool, nullptr, nullptr, nullptr));
  void *kept = allocate(3 << 20, stream), *behind = allocate(2 << 20, stream);
  /* The state to go back to: `behind` alone. Later, all is free but for another block at the start. */
  release(kept);
  release(behind);
  CHECK(allocate(4 << 20, stream) == kept);
  CHECK(cachalot_torch_allocate_at(pool, behind, 2 << 20, 1 << 20) == CACHALOT_ERROR_INVALID_ARGUMENT);
  release(kept);
  CHECK(cachalot_torch_allocate_at({0, 0}, behind, 2 << 20, 1 << 20) == CACHALOT_ERROR_INVALID_ARGUMENT);
  CHECK(cachalot_torch_allocate_at(pool, behind, 2 << 20, 1 << 20) == CACHALOT_OK);
  CHECK(cachalot_check_invariants(allocator) == CACHALOT_OK && allocate(3 << 20, stream) == kept);
  int64_t bytes = 0;
  CHECK(cachalot_find_statistic(allocator, 0, "allocated_bytes.all.current", &bytes) == CACHALOT_OK &&
        bytes == 5 << 20);
  CHECK(cachalot_torch_allocate_at(pool, nullptr, 512, 512) == CACHALOT_ERROR_INVALID_POINTER);
  /* From now on, no block is split: the request has all that is left of the segment. */
  CHECK(cachalot_torch_set_pool_flags(0, pool, CACHALOT_POOL_NO_SPLIT) == CACHALOT_OK);
  void *whole = allocate(4 << 20, stream);
  const std::vector<Segment> after = segments();
  CHECK(after.size() == 1 && after[0].head.pool.second == 6 && after[0].blocks.size() == 3);
  CHECK(after[0].blocks.back().base == whole && after[0].blocks.back().bytes == 15 << 20);
  /* A pool's counts are those of its segments. */
  CHECK((reserved() == std::vector<Reserved>{{6, 0, 20 << 20}}));
  void *tiny = allocate(1000, cuda->stream());
  CHECK((reserved() == std::vector<Reserved>{{6, 2 << 20, 20 << 20}}));
  const auto stop = [](void *, cachalot_pool, uint64_t, uint64_t) { return 1; };
  CHECK(cachalot_torch_pools(0, stop, nullptr) == CACHALOT_ERROR_STOPPED);
  CHECK(cachalot_torch_pools(0, nullptr, nullptr) == CACHALOT_ERROR_NULL);
  CHECK(cachalot_torch_pools(99, stop, nullptr) == CACHALOT_ERROR_UNKNOWN_DEVICE);
  release(tiny);
  for (void *block : {kept, behind, whole}) {
    release(block);
  }
  cachalot_torch_end_allocate_to_pool(0, pool);
  cachalot_torch_release_pool(0, pool);
  cachalot_torch_release_pool(0, pool);
  cachalot_torch_reset();
  CHECK(segments().empty() && reserved().empty());
}

/* A program that supplies segments, until it says that it has no more. */
struct Supplier {
  std::vector<size_t> supplied;
  std::vector<void *> taken_back;
  bool is_empty = false;
  size_t offset = 0;
  bool let_go = false;
};

constexpr size_t ALIGNMENT = 4096;

extern "C" void *supply(void *supplier, size_t bytes, int device) {
  auto &own = *static_cast<Supplier *>(supplier);
  CHECK(device == 0 && !own.let_go);
  if (own.is_empty) {
    return nullptr;
  }
  own.supplied.push_back(bytes);
  return static_cast<char *>(::operator new(bytes + ALIGNMENT, std::align_val_t{ALIGNMENT})) + own.offset;
}

extern "C" void take_back(void *supplier, void *segment, size_t, int device) {
  auto &own = *static_cast<Supplier *>(supplier);
  CHECK(device == 0 && !own.let_go);
  own.taken_back.push_back(segment);
  ::operator delete(static_cast<char *>(segment) - own.offset, std::align_val_t{ALIGNMENT});
}

extern "C" void let_go(void *supplier) {
  CHECK(!static_cast<Supplier *>(supplier)->let_go);
  static_cast<Supplier *>(supplier)->let_go = true;
}

/* A pool of segments that the program supplies. */
static void supplied_pool(cudaStream_t stream) {
  const cachalot_pool pool{0, 7};
  cachalot_allocator *allocator = nullptr;
  NEEDED(cachalot_torch_allocator(&allocator));
  Supplier own, other;
  CHECK(cachalot_torch_supply_pool(0, pool, supply, take_back, let_go, &own) == CACHALOT_ERROR_UNKNOWN_POOL);
  NEEDED(cachalot_pool_retain(allocator, 0, pool, 0));
  CHECK(cachalot_torch_supply_pool(0, pool, nullptr, take_back, let_go, &own) == CACHALOT_ERROR_NULL);
  CHECK(cachalot_torch_supply_pool(0, pool, supply, nullptr, let_go, &own) == CACHALOT_ERROR_NULL);
  CHECK(!own.let_go);
  /* The last one counts. */
  NEEDED(cachalot_torch_supply_pool(0, pool, supply, take_back, let_go, &other));
  NEEDED(cachalot_torch_supply_pool(0, pool, supply, take_back, let_go, &own));
  CHECK(other.let_go);
  NEEDED(cachalot_torch_begin_allocate_to_pool(0, pool, nullptr, nullptr, nullptr));
  /* The heap of a supplied pool has ordinary segments under every setting. */
  NEEDED(cachalot_torch_configure("expandable_segments:True"));
  void *small = allocate(1000, stream), *large = allocate(3 << 20, stream), *next = allocate(4 << 20, stream);
  CHECK((own.supplied == std::vector<size_t>{2 << 20, 20 << 20}));
  CHECK(stat("reserved_bytes.all.current") == 22 << 20 && stat("segment.all.current") == 2);
  CHECK(cachalot_check_invariants(allocator) == CACHALOT_OK);
  for (const Segment &segment : segments()) {
    CHECK(segment.head.pool.second == 7 && segment.head.expandable == 0);
  }
  /* The program has no more, or memory of the wrong kind: the request fails, and the next one succeeds. */
  void *none = nullptr;
  own.is_empty = true;
  CHECK(cachalot_torch_allocate(30 << 20, 0, stream, &none) == CACHALOT_ERROR_OUT_OF_MEMORY);
  own.is_empty = false;
  own.offset = 256;
  CHECK(cachalot_torch_allocate(30 << 20, 0, stream, &none) != CACHALOT_OK);
  own.offset = 0;
  CHECK(own.taken_back.size() == 1 && stat("reserved_bytes.all.current") == 22 << 20);
  void *own_segment = allocate(30 << 20, stream);
  cachalot_torch_end_allocate_to_pool(0, pool);
  /* Other requests have the device's memory. */
  void *outside = allocate(1000, stream);
  CHECK(own.supplied.size() == 4 && segments().size() == 4);
  cachalot_torch_release_pool(0, pool);
  cachalot_torch_release_pool(0, pool);
  for (void *block : {small, large, own_segment, outside}) {
    release(block);
  }
  CHECK(own.taken_back.size() == 1);
  cachalot_torch_reset();
  /* One block keeps its segment, and the segment the functions. */
  CHECK(own.taken_back.size() == 3 && !own.let_go && segments().size() == 1);
  release(next);
  cachalot_torch_reset();
  CHECK(own.taken_back.size() == 4 && own.let_go && segments().empty());
  CHECK(stat("reserved_bytes.all.current") == 0 && cachalot_check_invariants(allocator) == CACHALOT_OK);
  NEEDED(cachalot_torch_configure("expandable_segments:False"));
}

int main() {
  Driver driver;
  cuda = &driver;
  driver.use(0);
  const cudaStream_t stream = driver.stream();
  events(stream);
  values(stream);
  pools(stream);
  supplied_pool(stream);
  return failures == 0 ? 0 : 1;
}
