// Programs with a planted memory error each, under the C interface. Each program tells which address its kernel touches,
// what the device answers, and which block cachalot_explain_address names.
//
//   defects list                     the names of the programs
//   defects NAME [SETTINGS]          runs one, on an allocator with the settings (cachalot.h)
//   defects NAME async               runs one on cudaMallocAsync and cudaFreeAsync, without the library: for a comparison
//
// The output is a line: NAME, found or missed or clean or false, the right block or not, the device's code, the first wrong
// address, the first line of the explanation, and the milliseconds of the longest free. DEFECTS_GATE_MS limits how long work is
// held back (10,000): a tool may let a launch wait for its kernel. The file is compiled by nvcc for a GPU. Without one it is compiled twice, see
// emulated-runtime/README.md.
#include <cachalot_host_kernels.h>

// Adds 1 to one byte in `stride`, `count` times.
__global__ void touch(unsigned char* at, unsigned count, unsigned stride) {
  for (unsigned i = 0; i < count; ++i) at[std::size_t(i) * stride] += 1;
}
CACHALOT_HOST_KERNEL(touch);

// Reads a byte, and writes it to where the program may write.
__global__ void look(const unsigned char* at, unsigned char* to) { *to = *at; }
CACHALOT_HOST_KERNEL(look);

#if defined(__CUDACC__)

#include <cachalot.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

const std::size_t kib = 1 << 10, mib = 1 << 20;

void require(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
  std::exit(2);
}

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A gate in a stream: the work behind it waits until the gate opens, or for the longest time.
struct gate {
  std::atomic<bool> open{false};

  explicit gate(cudaStream_t stream) { require(cudaLaunchHostFunc(stream, wait, this), "a gate"); }

  static void CUDART_CB wait(void* self) {
    const char* const limit = std::getenv("DEFECTS_GATE_MS");
    const double end = now_ms() + (limit != nullptr ? std::atof(limit) : 10000);
    while (!static_cast<gate*>(self)->open && now_ms() < end) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
};

// What all programs use: an allocator, two streams, memory for results, and what the program's kernel is about to touch.
struct scene {
  cachalot::allocator allocator;
  const bool is_async;  // blocks are the runtime's, by cudaMallocAsync, and the library serves none
  cudaStream_t own, other;
  unsigned char* result;
  unsigned char* block = nullptr;    // the block that the report must name
  unsigned char* touched = nullptr;  // the first wrong address
  std::mutex guards;                 // what follows
  double longest_free = 0;
  // By cudaMallocAsync: the streams, and the events of uses, that a block's free must wait for.
  std::map<void*, std::vector<cudaStream_t>> streams;
  std::map<void*, std::vector<cudaEvent_t>> uses;

  explicit scene(const char* settings) : allocator(options(settings)), is_async(asks_async(settings)) {
    require(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), "a stream");
    require(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "a stream");
    require(cudaMalloc(reinterpret_cast<void**>(&result), 4096), "memory for results");
    // The kernels are loaded now, and not by a launch that a program captures or holds back.
    write(result, own);
    read(result, own);
    require(cudaStreamSynchronize(own), "the first kernels");
  }

  static bool asks_async(const char* settings) { return std::strcmp(settings, "async") == 0; }

  static cachalot::options options(const char* settings) {
    cachalot::options made;
    made.config = asks_async(settings) ? "" : settings;
    return made;
  }

  unsigned char* get(std::size_t bytes, cudaStream_t stream) {
    if (!is_async) return static_cast<unsigned char*>(allocator.malloc(bytes, stream));
    void* made = nullptr;
    require(cudaMallocAsync(&made, bytes, stream), "memory");
    return static_cast<unsigned char*>(made);
  }
  // Frees a block in the order of its own stream.
  void drop(void* at) {
    const double begin = now_ms();
    if (!is_async) {
      allocator.free(at);
    } else {
      const std::lock_guard<std::mutex> held(guards);
      for (cudaStream_t stream : streams[at]) uses[at].push_back(mark(stream));
      for (cudaEvent_t use : uses[at]) require(cudaStreamWaitEvent(own, use, 0), "a wait");
      streams.erase(at);
      uses.erase(at);
      require(cudaFreeAsync(at, own), "a free");
    }
    note(begin);
  }
  // Frees a block, and lets the allocator find out what is complete.
  void free(void* at) {
    drop(at);
    settle();
  }
  // Waits for the own stream, and lets the allocator find out what is complete.
  void settle() {
    require(cudaStreamSynchronize(own), "the block's stream");
    const double begin = now_ms();
    allocator.process_events();
    note(begin);
  }
  void note(double begin) {
    const double spent = now_ms() - begin;
    const std::lock_guard<std::mutex> held(guards);
    if (spent > longest_free) longest_free = spent;
  }
  void empty_cache() {
    allocator.empty_cache();
    cudaMemPool_t pool;
    if (!is_async) return;
    require(cudaDeviceGetDefaultMemPool(&pool, 0), "the pool");
    require(cudaMemPoolTrimTo(pool, 0), "a trim");
  }
  void record_stream(void* at, cudaStream_t stream) {
    if (is_async) streams[at].push_back(stream); else allocator.record_stream(at, stream);
  }
  void record_use(void* at, cudaStream_t stream) {
    if (is_async) uses[at].push_back(mark(stream)); else allocator.record_use(at, stream);
  }
  // Returns an event after the work of a stream.
  static cudaEvent_t mark(cudaStream_t stream) {
    cudaEvent_t event;
    require(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event");
    require(cudaEventRecord(event, stream), "an event");
    return event;
  }
  // Orders a stream behind the own one, as every program must before it uses a new block there.
  void follow(cudaStream_t stream) { require(cudaStreamWaitEvent(stream, mark(own), 0), "a wait"); }
  void write(unsigned char* at, cudaStream_t stream, unsigned count = 1, unsigned stride = 1) {
    touch<<<1, 1, 0, stream>>>(at, count, stride);
  }
  void read(const unsigned char* at, cudaStream_t stream) { look<<<1, 1, 0, stream>>>(at, result); }
  // Notes the wrong address of the program, `offset` bytes from the start of `of`.
  unsigned char* wrong(unsigned char* of, std::ptrdiff_t offset = 0) {
    block = of;
    return touched = of + offset;
  }
};

// ---- In space ----

template <std::size_t bytes, std::ptrdiff_t offset, bool writes>
void beyond(scene& it) {
  unsigned char* block = it.get(bytes, it.own);
  unsigned char* at = it.wrong(block, offset < 0 ? offset : std::ptrdiff_t(bytes) + offset);
  if (writes) it.write(at, it.own); else it.read(at, it.own);
}

template <std::size_t bytes>
void one_too_many(scene& it) {
  unsigned char* block = it.get(bytes, it.own);
  it.wrong(block, bytes);
  it.write(block, it.own, bytes / 4 + 1, 4);
}

void wrong_pitch(scene& it) {
  const unsigned rows = 1024;
  unsigned char* block = it.get(rows * 4096, it.own);
  it.wrong(block, std::size_t(rows) * 4096);
  it.write(block, it.own, rows, 4104);
  // The first row beyond the end.
  it.touched = block + std::size_t(rows - 1) * 4104;
}

void wrong_base(scene& it) {
  it.get(3 * mib, it.own);
  unsigned char* block = it.get(3 * mib, it.own);
  it.write(it.wrong(block, 3 * mib + 4096), it.own);
}

// ---- In time ----

template <std::size_t bytes, bool writes, std::ptrdiff_t offset>
void after_free(scene& it) {
  unsigned char* block = it.get(bytes, it.own);
  it.write(block, it.own);
  it.free(block);
  unsigned char* at = it.wrong(block, offset);
  if (writes) it.write(at, it.own); else it.read(at, it.own);
}

// The memory serves another block when the old address is used.
template <std::size_t bytes, bool writes>
void after_reuse(scene& it) {
  unsigned char* block = it.get(bytes, it.own);
  it.free(block);
  it.get(bytes, it.own);
  unsigned char* at = it.wrong(block);
  if (writes) it.write(at, it.own); else it.read(at, it.own);
}

void after_the_free_in_a_loop(scene& it) {
  unsigned char* first = nullptr;
  for (int round = 0; round < 10; ++round) {
    unsigned char* block = it.get(64 * kib, it.own);
    if (first == nullptr) first = block;
    it.write(block, it.own, 64, 1024);
    it.free(block);
  }
  it.read(it.wrong(first, 512), it.own);
}

void after_a_growth(scene& it) {
  unsigned char* small = it.get(1 * mib, it.own);
  unsigned char* large = it.get(2 * mib, it.own);
  require(cudaMemcpyAsync(large, small, 1 * mib, cudaMemcpyDeviceToDevice, it.own), "a copy");
  it.free(small);
  it.write(it.wrong(small, 5000), it.own);
}

void after_a_free_by_a_thread(scene& it) {
  unsigned char* block = it.get(256 * kib, it.own);
  std::thread([&] { it.drop(block); }).join();
  it.settle();
  it.write(it.wrong(block), it.own);
}

void after_empty_cache(scene& it) {
  unsigned char* block = it.get(5 * mib, it.own);
  it.free(block);
  it.empty_cache();
  it.read(it.wrong(block, 3 * mib), it.own);
}

void one_of_two_pointers(scene& it) {
  unsigned char* block = it.get(128 * kib, it.own);
  unsigned char* inside = block + 4096;
  it.free(block);
  it.write(it.wrong(block, inside - block), it.own);
}

void in_a_graph_replayed_later(scene& it) {
  unsigned char* block = it.get(1 * mib, it.own);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  require(cudaStreamBeginCapture(it.own, cudaStreamCaptureModeThreadLocal), "a capture");
  it.write(block, it.own);
  require(cudaStreamEndCapture(it.own, &graph), "the end of a capture");
  require(cudaGraphInstantiate(&executable, graph, 0), "a graph");
  require(cudaGraphLaunch(executable, it.own), "a replay");
  it.free(block);
  it.wrong(block);
  require(cudaGraphLaunch(executable, it.own), "a replay");
}

// ---- Across streams ----

// The other stream is behind: it reaches the block when the free is complete.
template <std::size_t bytes, bool writes>
void not_recorded(scene& it) {
  unsigned char* block = it.get(bytes, it.own);
  it.follow(it.other);
  gate behind(it.other);
  unsigned char* at = it.wrong(block);
  if (writes) it.write(at, it.other); else it.read(at, it.other);
  it.free(block);
  behind.open = true;
  cudaStreamSynchronize(it.other);
}

template <std::size_t bytes>
void not_recorded_and_reused(scene& it) {
  unsigned char* block = it.get(bytes, it.own);
  it.follow(it.other);
  gate behind(it.other);
  it.write(it.wrong(block), it.other);
  it.free(block);
  it.write(it.get(bytes, it.own), it.own);
  behind.open = true;
  cudaStreamSynchronize(it.other);
}

// The use was recorded up to a moment before the last one.
void recorded_too_early(scene& it) {
  unsigned char* block = it.get(1 * mib, it.own);
  it.follow(it.other);
  it.write(block, it.other);
  it.record_use(block, it.other);
  require(cudaStreamSynchronize(it.other), "the first use");
  gate behind(it.other);
  it.write(it.wrong(block), it.other);
  it.free(block);
  behind.open = true;
  cudaStreamSynchronize(it.other);
}

void another_stream_recorded(scene& it) {
  cudaStream_t third;
  require(cudaStreamCreateWithFlags(&third, cudaStreamNonBlocking), "a stream");
  unsigned char* block = it.get(300 * kib, it.own);
  it.record_stream(block, third);
  it.follow(it.other);
  gate behind(it.other);
  it.read(it.wrong(block, 1000), it.other);
  it.drop(block);
  require(cudaStreamSynchronize(third), "the stream that was recorded");
  it.settle();
  behind.open = true;
  cudaStreamSynchronize(it.other);
}

void recorded_for_another_block(scene& it) {
  unsigned char* block = it.get(300 * kib, it.own);
  unsigned char* neighbour = it.get(300 * kib, it.own);
  it.record_stream(neighbour, it.other);
  it.follow(it.other);
  gate behind(it.other);
  it.read(it.wrong(block), it.other);
  it.free(block);
  behind.open = true;
  cudaStreamSynchronize(it.other);
}

// The copy to the host comes late.
void copied_late(scene& it) {
  unsigned char* block = it.get(4 * mib, it.own);
  it.follow(it.other);
  gate behind(it.other);
  it.read(it.wrong(block, 4 * mib - 1), it.other);
  it.free(block);
  behind.open = true;
  cudaStreamSynchronize(it.other);
}

void launched_after_the_free(scene& it) {
  unsigned char* block = it.get(2 * mib, it.own);
  it.free(block);
  it.write(it.wrong(block, 100), it.other);
}

void waited_for_the_wrong_event(scene& it) {
  cudaEvent_t early;
  require(cudaEventCreateWithFlags(&early, cudaEventDisableTiming), "an event");
  unsigned char* block = it.get(2 * mib, it.own);
  require(cudaEventRecord(early, it.other), "an event");
  it.follow(it.other);
  gate behind(it.other);
  it.write(it.wrong(block), it.other);
  // The own stream waits for work before the use.
  require(cudaStreamWaitEvent(it.own, early, 0), "a wait");
  it.free(block);
  behind.open = true;
  cudaStreamSynchronize(it.other);
}

void a_use_for_each_round(scene& it) {
  unsigned char* block = it.get(1 * mib, it.own);
  it.follow(it.other);
  for (int round = 0; round < 3; ++round) {
    it.write(block, it.other);
    it.record_use(block, it.other);
  }
  require(cudaStreamSynchronize(it.other), "the rounds");
  gate behind(it.other);
  it.write(it.wrong(block, 64), it.other);
  it.free(block);
  behind.open = true;
  cudaStreamSynchronize(it.other);
}

void a_graph_on_another_stream(scene& it) {
  unsigned char* block = it.get(1 * mib, it.own);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  require(cudaStreamBeginCapture(it.other, cudaStreamCaptureModeThreadLocal), "a capture");
  it.write(block, it.other);
  require(cudaStreamEndCapture(it.other, &graph), "the end of a capture");
  require(cudaGraphInstantiate(&executable, graph, 0), "a graph");
  it.follow(it.other);
  gate behind(it.other);
  it.wrong(block);
  require(cudaGraphLaunch(executable, it.other), "a replay");
  it.free(block);
  behind.open = true;
  cudaStreamSynchronize(it.other);
}

// ---- Without an error ----

template <std::size_t bytes>
void clean_stream(scene& it) {
  for (int round = 0; round < 5; ++round) {
    unsigned char* block = it.get(bytes, it.own);
    it.write(block, it.own, 16, bytes / 16);
    it.read(block + bytes - 1, it.own);
    it.drop(block);
  }
}

template <std::size_t bytes>
void clean_streams(scene& it) {
  for (int round = 0; round < 5; ++round) {
    unsigned char* block = it.get(bytes, it.own);
    it.write(block, it.own, 16, bytes / 16);
    it.follow(it.other);
    gate behind(it.other);
    it.write(block + bytes - 1, it.other);
    it.record_stream(block, it.other);
    it.free(block);
    behind.open = true;
    require(cudaStreamSynchronize(it.other), "the other stream");
    it.settle();
  }
}

void clean_uses_so_far(scene& it) {
  for (int round = 0; round < 5; ++round) {
    unsigned char* block = it.get(700 * kib, it.own);
    it.follow(it.other);
    it.write(block, it.other);
    it.record_use(block, it.other);
    it.free(block);
  }
}

void clean_graph(scene& it) {
  unsigned char* block = it.get(1 * mib, it.own);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  require(cudaStreamBeginCapture(it.own, cudaStreamCaptureModeThreadLocal), "a capture");
  it.write(block, it.own);
  require(cudaStreamEndCapture(it.own, &graph), "the end of a capture");
  require(cudaGraphInstantiate(&executable, graph, 0), "a graph");
  for (int round = 0; round < 3; ++round) require(cudaGraphLaunch(executable, it.own), "a replay");
  require(cudaStreamSynchronize(it.own), "the replays");
  it.free(block);
}

void clean_threads(scene& it) {
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        unsigned char* block = it.get(300 * kib, it.own);
        it.write(block, it.own);
        it.drop(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

struct program {
  const char* name;
  void (*run)(scene&);
};

const program programs[] = {
    {"space-write-behind-4k", beyond<4096, 0, true>},
    {"space-read-behind-4k", beyond<4096, 0, false>},
    {"space-write-behind-3m", beyond<3 * mib, 0, true>},
    {"space-read-behind-3m", beyond<3 * mib, 0, false>},
    {"space-write-4k-behind", beyond<64 * kib, 4096, true>},
    {"space-write-far-behind", beyond<2 * mib, 1 * mib, true>},
    {"space-read-far-behind", beyond<512 * kib, 1 * mib, false>},
    {"space-write-slack", beyond<1000, 0, true>},
    {"space-write-slack-end", beyond<1000, 20, true>},
    {"space-write-before-4k", beyond<4096, -1, true>},
    {"space-read-before-3m", beyond<3 * mib, -1, false>},
    {"space-write-4k-before", beyond<64 * kib, -4096, true>},
    {"space-one-too-many", one_too_many<2 * mib>},
    {"space-wrong-pitch", wrong_pitch},
    {"space-wrong-base", wrong_base},
    {"time-write-small", after_free<4096, true, 0>},
    {"time-read-small", after_free<4096, false, 0>},
    {"time-write-1m", after_free<1 * mib, true, 0>},
    {"time-read-1m", after_free<1 * mib, false, 0>},
    {"time-write-20m", after_free<20 * mib, true, 0>},
    {"time-read-20m", after_free<20 * mib, false, 0>},
    {"time-write-inside", after_free<3 * mib, true, 1 * mib>},
    {"time-read-end", after_free<3 * mib, false, 3 * mib - 1>},
    {"time-reused-write-small", after_reuse<4096, true>},
    {"time-reused-read-small", after_reuse<4096, false>},
    {"time-reused-write-3m", after_reuse<3 * mib, true>},
    {"time-reused-read-3m", after_reuse<3 * mib, false>},
    {"time-loop", after_the_free_in_a_loop},
    {"time-growth", after_a_growth},
    {"time-thread", after_a_free_by_a_thread},
    {"time-empty-cache", after_empty_cache},
    {"time-second-pointer", one_of_two_pointers},
    {"time-graph", in_a_graph_replayed_later},
    {"stream-write-small", not_recorded<4096, true>},
    {"stream-read-small", not_recorded<4096, false>},
    {"stream-write-3m", not_recorded<3 * mib, true>},
    {"stream-read-3m", not_recorded<3 * mib, false>},
    {"stream-reused-small", not_recorded_and_reused<4096>},
    {"stream-reused-3m", not_recorded_and_reused<3 * mib>},
    {"stream-reused-40m", not_recorded_and_reused<40 * mib>},
    {"stream-recorded-early", recorded_too_early},
    {"stream-other-recorded", another_stream_recorded},
    {"stream-other-block", recorded_for_another_block},
    {"stream-late-copy", copied_late},
    {"stream-launched-late", launched_after_the_free},
    {"stream-wrong-event", waited_for_the_wrong_event},
    {"stream-last-round", a_use_for_each_round},
    {"stream-graph", a_graph_on_another_stream},
    {"clean-512", clean_stream<512>},
    {"clean-4k", clean_stream<4096>},
    {"clean-100k", clean_stream<100 * kib>},
    {"clean-1m", clean_stream<1 * mib>},
    {"clean-2m", clean_stream<2 * mib>},
    {"clean-3m", clean_stream<3 * mib>},
    {"clean-20m", clean_stream<20 * mib>},
    {"clean-50m", clean_stream<50 * mib>},
    {"clean-two-512", clean_streams<512>},
    {"clean-two-4k", clean_streams<4096>},
    {"clean-two-100k", clean_streams<100 * kib>},
    {"clean-two-1m", clean_streams<1 * mib>},
    {"clean-two-2m", clean_streams<2 * mib>},
    {"clean-two-3m", clean_streams<3 * mib>},
    {"clean-two-20m", clean_streams<20 * mib>},
    {"clean-two-50m", clean_streams<50 * mib>},
    {"clean-uses", clean_uses_so_far},
    {"clean-graph", clean_graph},
    {"clean-threads", clean_threads},
    {"clean-16k", clean_stream<16 * kib>},
};

// Runs a program, and prints what was found.
int run(const program& of, const char* settings) {
  scene it(settings);
  of.run(it);
  const cudaError_t code = cudaDeviceSynchronize();
  // Canaries are checked at the free. Programs that have freed the block get an error, which changes nothing.
  if (code == cudaSuccess && !it.is_async && it.block != nullptr &&
      cachalot_free(it.allocator.get(), it.block) == CACHALOT_OK) {
    it.settle();
  }
  std::string said;
  if (it.touched != nullptr && !it.is_async) {
    char text[4096] = "";
    if (cachalot_explain_address(it.allocator.get(), it.touched, text, sizeof text, nullptr) != CACHALOT_OK) {
      std::snprintf(text, sizeof text, "%s", cachalot_last_error());
    }
    said = text;
  }
  char named[64];
  std::snprintf(named, sizeof named, "%p", static_cast<void*>(it.block));
  const bool right = said.find(std::string(" at ") + named + ",") != std::string::npos;
  const bool planted = it.touched != nullptr;
  const char* verdict = planted ? (code == cudaSuccess ? "missed" : "found") : (code == cudaSuccess ? "clean" : "false");
  std::printf("%s\t%s\t%s\t%d\t%p\t%s\t%.1f\n", of.name, verdict, right ? "right" : "-", int(code),
              static_cast<void*>(it.touched), said.substr(0, said.find('\n')).c_str(), it.longest_free);
  std::fflush(stdout);
  // Blocks are left, and the context may be broken.
  std::_Exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  for (const program& of : programs) {
    if (std::strcmp(argv[1], "list") == 0) std::puts(of.name);
    else if (std::strcmp(argv[1], of.name) == 0) return run(of, argc > 2 ? argv[2] : "");
  }
  return std::strcmp(argv[1], "list") == 0 ? 0 : 2;
}

#endif
