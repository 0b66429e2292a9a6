/*
 * Blocks that a captured graph uses on several streams, and reuses before the capture ends, with the setting
 * graph_capture_record_stream_reuse: in the manner of torch.cuda.CUDAGraph with two and with four streams.
 *
 * With a second argument, calls to the driver may fail: then no block is reused too early, and perhaps none is. If the
 * argument is not empty, it is a fault plan that is active while blocks with recorded streams are freed.
 */
#include "torch.hpp"

#include <algorithm>
#include <vector>

namespace {

using Join = std::pair<cudaStream_t, cudaStream_t>;

/* The driver, with the events by which streams wait for one another. */
struct Streams : Driver {
  std::string plan; /* The faults of a free. */
  int (*set_plan)(const char *) = function<int(const char *)>(library, "emu_plan");
  void (*clear_plan)() = function<void()>(library, "emu_plan_clear");
  int (*event_create)(void **, unsigned) = function<int(void **, unsigned)>(library, "cuEventCreate");
  int (*event_destroy)(void *) = function<int(void *)>(library, "cuEventDestroy_v2");
  int (*event_record)(void *, cudaStream_t) = function<int(void *, cudaStream_t)>(library, "cuEventRecord");
  int (*wait_event)(cudaStream_t, void *, unsigned) =
      function<int(cudaStream_t, void *, unsigned)>(library, "cuStreamWaitEvent");

  /* What torch.cuda.Stream.wait_stream does. */
  void wait(cudaStream_t stream, cudaStream_t awaited) const {
    void *event = nullptr;
    NEEDED(event_create(&event, 2));
    NEEDED(event_record(event, awaited));
    NEEDED(wait_event(stream, event, 0));
    NEEDED(event_destroy(event));
  }
};

constexpr size_t BYTES = 32;

/* A capture on `main` of which `sides` are branches. A block is used on all of them and freed; then the branches are
 * joined, one after the other. Returns for each number of joins whether a request gets the block. */
std::vector<bool> capture(Pluggable &torch, const Streams &cuda, uint64_t pool, size_t sides, bool chained) {
  const cudaStream_t main = cuda.stream();
  std::vector<cudaStream_t> branches;
  std::vector<void *> blocks;
  std::vector<bool> reused;
  for (size_t side = 0; side < sides; ++side) {
    branches.push_back(cuda.stream());
  }
  Graph graph(cuda, torch, 0, {pool, 0});
  graph.begin(main);
  void *block = torch.allocate(BYTES, 0, main);
  cuda.use_block(block, BYTES, main);
  for (cudaStream_t branch : branches) {
    cuda.wait(branch, main);
    cuda.use_block(block, BYTES, branch);
    torch.record_stream(block, branch);
  }
  if (!cuda.plan.empty()) {
    NEEDED(cuda.set_plan(cuda.plan.c_str()));
  }
  torch.free(block);
  if (!cuda.plan.empty()) {
    cuda.clear_plan();
  }
  const auto ask = [&] {
    blocks.push_back(torch.allocate(BYTES, 0, main));
    cuda.use_block(blocks.back(), BYTES, main);
    reused.push_back(blocks.back() == block);
  };
  ask();
  for (size_t side = 0; side < sides; ++side) {
    /* In a chain, each branch joins the next one, and only the last one the main stream. */
    const bool is_last = side + 1 == sides;
    cuda.wait(chained && !is_last ? branches[side + 1] : main, branches[side]);
    ask();
  }
  graph.end();
  for (void *kept : blocks) {
    torch.free(kept);
  }
  graph.reset();
  return reused;
}

}  // namespace

int main(int count, char **arguments) {
  CHECK(count == 2 || count == 3);
  const bool exact = count == 2;
  Streams cuda;
  cuda.plan = exact ? "" : arguments[2];
  cuda.use(0);
  Pluggable torch(arguments[1]);
  torch.init(1);
  const auto check = [&](const std::vector<bool> &reused, bool is_reused) {
    const bool last = reused.back();
    CHECK(std::count(reused.begin(), reused.end(), true) == last);
    CHECK(exact ? last == is_reused : !last || is_reused);
  };
  /* PyTorch's tests set it at run time. */
  check(capture(torch, cuda, 7, 1, false), false);
  NEEDED(cachalot_torch_configure("graph_capture_record_stream_reuse:True"));
  check(capture(torch, cuda, 8, 1, false), true);
  check(capture(torch, cuda, 9, 3, false), true);
  check(capture(torch, cuda, 10, 3, true), true);
  NEEDED(cachalot_torch_configure("graph_capture_record_stream_reuse:False"));
  check(capture(torch, cuda, 11, 1, false), false);
  torch.empty_cache();
  CHECK(stat("allocation.all.current") == 0 && stat("reserved_bytes.all.current") == 0);
  cachalot_allocator *allocator = nullptr;
  NEEDED(cachalot_torch_allocator(&allocator));
  CHECK(cachalot_check_invariants(allocator) == CACHALOT_OK);
  return failures == 0 ? 0 : 1;
}
