// Blocks of pinned memory that a captured graph uses are kept for the graph's replays.
#include "../../../ffi/torch/pinned/captured.hpp"

#include "../check.hpp"

#include <cstdio>
#include <set>
#include <thread>

using Captured = cachalot_torch::Captured<int, int>;

static const auto on = [](int stream) { return [stream](int asked) { return asked == stream; }; };
static const auto current = [](int stream) { return [stream] { return stream; }; };
static void *block(std::size_t number) { return reinterpret_cast<void *>(number * 4096); }

static void a_used_block_is_kept_until_its_pool_is_released() {
  Captured captured;
  captured.note(block(1), current(7));
  CHECK(!captured.use(block(1)) && !captured.keep(block(1)));  // no capture
  CHECK(captured.begin(5, on(7)) && !captured.begin(5, on(8)));
  captured.note(block(1), current(7));
  captured.note(block(2), current(7));
  captured.note(block(3), current(8));  // of a stream that is not captured
  CHECK(captured.use(block(1)) && !captured.use(block(3)));
  CHECK(captured.keep(block(1)));   // used: the graph copies from it
  CHECK(!captured.keep(block(2)));  // not used: free
  CHECK(!captured.keep(block(3)));
  CHECK(captured.take_released().empty());
  CHECK(captured.end(5) && !captured.end(5));
  CHECK(captured.take_released().empty());
  CHECK(captured.release(5) && !captured.release(5));
  CHECK(captured.take_released() == std::vector<void *>{block(1)});
  CHECK(captured.take_released().empty());
}

static void several_graphs_share_a_pool() {
  Captured captured;
  for (std::size_t graph = 1; graph <= 2; ++graph) {
    CHECK(captured.begin(5, on(7)));
    captured.note(block(graph), current(7));
    CHECK(captured.use(block(graph)));
    CHECK(captured.end(5));
  }
  CHECK(captured.keep(block(1)));
  CHECK(captured.release(5));
  CHECK(captured.take_released().empty());  // the second graph has the pool
  CHECK(captured.release(5));
  CHECK(captured.keep(block(2)));  // freed after its pool is gone
  const std::vector<void *> left = captured.take_released();
  CHECK((std::set<void *>(left.begin(), left.end()) == std::set<void *>{block(1), block(2)}));
}

static void nothing_is_handed_out_during_a_capture() {
  Captured captured;
  CHECK(captured.begin(1, on(1)));
  captured.note(block(1), current(1));
  CHECK(captured.use(block(1)) && captured.keep(block(1)) && captured.end(1) && captured.release(1));
  CHECK(captured.begin(2, on(2)));
  CHECK(captured.take_released().empty());
  CHECK(captured.end(2));
  CHECK(captured.take_released().size() == 1);
}

static void threads_may_come_at_any_time() {
  Captured captured;
  std::vector<std::thread> threads;
  for (std::size_t thread = 1; thread <= 4; ++thread) {
    threads.emplace_back([&captured, thread] {
      const int name = static_cast<int>(thread);
      for (std::size_t round = 0; round < 500; ++round) {
        void *const own = block(thread * 1000 + round);
        CHECK(captured.begin(name, on(name)));
        captured.note(own, current(name));
        CHECK(captured.use(own) && captured.end(name) && captured.keep(own) && captured.release(name));
      }
    });
  }
  for (std::thread &thread : threads) {
    thread.join();
  }
  CHECK(captured.take_released().size() == 2000);
}

int main() {
  a_used_block_is_kept_until_its_pool_is_released();
  several_graphs_share_a_pool();
  nothing_is_handed_out_during_a_capture();
  threads_may_come_at_any_time();
  if (failures == 0) {
    std::puts("captured: well");
  }
  return failures == 0 ? 0 : 1;
}
