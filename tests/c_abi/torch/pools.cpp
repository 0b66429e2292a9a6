/*
 * Graphs and pools as PyTorch has them: captures on one stream beside requests on others, frees and uses of other
 * streams meanwhile, graphs that share a pool, detours of a thread, and what is let go of when.
 */
#include "torch.hpp"

#include <memory>
#include <thread>

static const Driver *cuda;

/* The pool that a block is in. */
static MempoolId_t pool_of(void *block) {
  cachalot_allocator *handle = nullptr;
  cachalot_block found = CACHALOT_BLOCK_INIT;
  std::string text;
  NEEDED(cachalot_torch_allocator(&handle));
  NEEDED(cachalot_get_block(handle, block, &found));
  NEEDED(cachalot_snapshot(
      handle, nullptr,
      [](void *whole, const char *part, size_t bytes) {
        static_cast<std::string *>(whole)->append(part, bytes);
        return 0;
      },
      &text));
  const std::string address = "\"address\":" + std::to_string(reinterpret_cast<uintptr_t>(found.segment_base));
  const size_t segment = text.find(address);
  CHECK(segment != std::string::npos);
  /* The segment's own entry ends where its list of blocks begins or the next segment does. */
  const size_t begins = text.rfind("{\"device\"", segment);
  const size_t id = text.find("\"segment_pool_id\":[", begins == std::string::npos ? segment : begins);
  CHECK(id != std::string::npos);
  MempoolId_t pool{~0ull, ~0ull};
  CHECK(std::sscanf(text.c_str() + id, "\"segment_pool_id\":[%llu,%llu]", &pool.first, &pool.second) == 2);
  return pool;
}

static uint64_t recorded() {
  return cuda->calls("cuEventRecord");
}

/* A block that another stream has used, freed. */
static void free_used(Pluggable &torch, void *block, cudaStream_t other) {
  cuda->use_block(block, 512, other);
  torch.record_stream(block, other);
  torch.free(block);
}

static void capture(Pluggable &torch) {
  const MempoolId_t pool{7, 0};
  const cudaStream_t stream = cuda->stream(), side = cuda->stream();
  void *early = torch.allocate(1000, 0, side), *kept = torch.allocate(1000, 0, side);
  const uint64_t before = recorded();
  Graph graph(*cuda, torch, 0, pool);
  graph.begin(stream);
  /* Only what the capturing stream asks for is the graph's. */
  void *result = torch.allocate(4 << 20, 0, stream), *scratch = torch.allocate(4 << 20, 0, stream);
  cuda->use_block(scratch, 4 << 20, stream);
  CHECK(pool_of(result) == pool && pool_of(scratch) == pool);
  void *outside = torch.allocate(4 << 20, 0, side);
  CHECK(pool_of(outside) == MempoolId_t(0, 0));
  /* Freed on its own stream's order, a block serves the graph again. */
  torch.free(scratch);
  CHECK(torch.allocate(4 << 20, 0, stream) == scratch);
  /* No event is recorded while a graph is captured: it would become part of it. The block is kept. */
  torch.record_stream(early, stream);
  free_used(torch, kept, side);
  torch.free(early);
  CHECK(recorded() == before && torch.allocate(1000, 0, side) != early);
  graph.end();
  CHECK(pool_of(torch.allocate(4 << 20, 0, stream)) == MempoolId_t(0, 0));

  /* A second graph in the same pool; the pool's memory stays until both are gone. */
  torch.free(result);
  torch.free(scratch);
  Graph second(*cuda, torch, 0, pool);
  second.begin(stream);
  void *again = torch.allocate(4 << 20, 0, stream);
  CHECK(again == result || again == scratch);
  second.end();
  torch.free(again);
  torch.empty_cache();
  const int64_t held = stat("segment.all.current");
  graph.reset();
  torch.empty_cache();
  CHECK(stat("segment.all.current") == held);
  second.reset();
  torch.empty_cache();
  CHECK(stat("segment.all.current") == held - 1);
}

/* torch.cuda.use_mem_pool: a thread's requests, or everybody's, with no graph. */
static void detour(Pluggable &torch) {
  const MempoolId_t pool{0, 3}, inner{0, 4};
  const cudaStream_t stream = cuda->stream(), side = cuda->stream();
  void *early = torch.allocate(1000, 0, stream), *late = torch.allocate(1000, 0, stream);
  const std::thread::id own = std::this_thread::get_id();
  torch.begin_allocate_to_pool(0, pool, [own](cudaStream_t) { return std::this_thread::get_id() == own; });
  const uint64_t before = recorded();
  free_used(torch, early, side);
  CHECK(recorded() == before);
  void *led = torch.allocate(1000, 0, stream);
  /* That was not captured: what had to wait is made up for, and nothing waits from here on. */
  CHECK(pool_of(led) == pool && recorded() == before + 1);
  free_used(torch, late, side);
  CHECK(recorded() == before + 2);
  std::thread([&] { CHECK(pool_of(torch.allocate(1000, 0, stream)) == MempoolId_t(0, 0)); }).join();
  /* The latest comes first; only the stream that it names is led. */
  torch.begin_allocate_to_pool(0, inner, [side](cudaStream_t asked) { return asked == side; });
  CHECK(pool_of(torch.allocate(1000, 0, side)) == inner && pool_of(torch.allocate(1000, 0, stream)) == pool);
  CHECK(pool_of(torch.allocate(1000, 0, nullptr)) == pool);
  /* A new stream may have the handle of an ended one. */
  cachalot_allocator *handle = nullptr;
  NEEDED(cachalot_torch_allocator(&handle));
  NEEDED(cachalot_stream_destroyed(handle, 0, side));
  CHECK(pool_of(torch.allocate(1000, 0, side)) == inner);
  torch.end_allocate_to_pool(0, inner);
  CHECK(pool_of(torch.allocate(1000, 0, side)) == pool);
  /* An empty function leads everything. */
  torch.begin_allocate_to_pool(0, inner, nullptr);
  std::thread([&] { CHECK(pool_of(torch.allocate(1000, 0, stream)) == inner); }).join();
  torch.end_allocate_to_pool(0, inner);
  torch.end_allocate_to_pool(0, pool);
  torch.release_pool(0, inner);
  torch.release_pool(0, inner);
  torch.release_pool(0, pool);
  CHECK(pool_of(torch.allocate(1000, 0, stream)) == MempoolId_t(0, 0));
}

/* A filter is kept as long as its route is active, and not longer. */
static void ownership(Pluggable &torch) {
  const MempoolId_t pool{9, 0};
  std::weak_ptr<int> alive;
  {
    auto token = std::make_shared<int>(1);
    alive = token;
    torch.begin_allocate_to_pool(0, pool, [token](cudaStream_t) { return *token == 1; });
  }
  CHECK(!alive.expired() && pool_of(torch.allocate(1000, 0, nullptr)) == pool);
  torch.end_allocate_to_pool(0, pool);
  CHECK(alive.expired());
  torch.release_pool(0, pool);
  {
    auto token = std::make_shared<int>(1);
    alive = token;
    try {
      torch.begin_allocate_to_pool(9, pool, [token](cudaStream_t) { return *token == 1; });
      CHECK(!"there is no such device");
    } catch (const std::exception &) {
    }
  }
  CHECK(alive.expired());
}

int main(int, char **argv) {
  const Driver driver;
  cuda = &driver;
  driver.use(0);
  Pluggable torch(argv[1]);
  torch.init(1);
  capture(torch);
  detour(torch);
  ownership(torch);
  cachalot_allocator *handle = nullptr;
  NEEDED(cachalot_torch_allocator(&handle));
  NEEDED(cachalot_check_invariants(handle));
  return failures != 0;
}
