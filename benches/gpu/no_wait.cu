// Shows that no call of cachalot waits for a running kernel while pages are created, moved and unmapped.
//
//   nvcc -O2 -std=c++17 -arch=native -Iinclude -Iemulated-runtime/include benches/gpu/no_wait.cu -o no_wait
//     -Ltarget/release -l:libcachalot.a -lpthread -ldl -lm
//   ./no_wait [SETTINGS]        default: policy:stitched,slack:0
//
// In each round, one stream is kept busy by a kernel of 80 ms that writes to a live block. Blocks of every stream are
// allocated before, and one out of four is freed once the kernel runs, so all free memory is in holes. Meanwhile
// other streams request blocks that are larger than any hole, use them, and free some, and every few steps the program
// calls cachalot_maintain. Every call that starts while the kernel runs is timed. At the end of the round, the kernel's
// block is checked. The second row of the table has cudaMalloc and cudaFree in the same situation.
//
// The exit status is 1 if a call of cachalot took 2 ms or more, if no page was moved, created or unmapped, or if a word
// of the kernel's block is wrong.
#include <cachalot_host_kernels.h>

#ifdef __CUDACC__
#define CLOCK_NS(out) asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(out))
#else
#include <chrono>
#include <thread>
// The host's processors have other work to do while a kernel of the emulated driver runs.
#define CLOCK_NS(out)                                           \
  std::this_thread::sleep_for(std::chrono::microseconds(100)); \
  out = static_cast<unsigned long long>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1))
#endif

// Writes `value` to every `stride`th word of a block, again and again until `nanoseconds` are over.
__global__ void keep_busy(unsigned *words, unsigned count, unsigned stride, unsigned value,
                          unsigned long long nanoseconds) {
  unsigned long long begin, now;
  CLOCK_NS(begin);
  do {
    for (unsigned at = 0; at < count; at += stride) {
      static_cast<volatile unsigned *>(words)[at] = value;
    }
    CLOCK_NS(now);
  } while (now - begin < nanoseconds);
}
CACHALOT_HOST_KERNEL(keep_busy);

#ifdef __CUDACC__
#include "check.h"

#include "cachalot.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
// Bytes of the block that the kernel writes to, and the distance of the words: one in each page and more.
constexpr std::size_t kLiveBytes = 64 * kMiB;
constexpr unsigned kStride = 1 << 16;
constexpr unsigned long long kKernelNs = 80'000'000;
// The default of the setting `max_stall_us`, which bounds the calls.
constexpr double kBoundMs = 2;
constexpr unsigned kRounds = 20;
// Streams that request memory while another one is busy.
constexpr int kStreams = 3;
// Blocks of each stream before a round, and the bytes of each: a hole of such a block has one whole page.
constexpr int kBlocks = 96;
constexpr std::size_t kBlockBytes = 3 * kMiB;
// Requests while the kernel runs: the fewest bytes, the most, and the most that are live at one time. All of them
// together need more than the holes have, so that pages are created, too.
constexpr std::size_t kFewestBytes = 4 * kMiB, kMostBytes = 12 * kMiB;
constexpr std::size_t kMostHeld = 56;
// Steps of a round: with more, so much work waits after the kernel that the driver itself waits for room.
constexpr int kSteps = 300;
// Steps between two calls of cachalot_maintain, and the driver's time that each may take.
constexpr int kMaintainEvery = 4;
constexpr std::uint64_t kMaintainUs = 200;

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Random {
 public:
  // A number below `end`.
  std::uint64_t below(std::uint64_t end) {
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return state_ % end;
  }

 private:
  std::uint64_t state_ = 88172645463325252ull;
};

// Times of the calls of one kind that started while a kernel was running.
class Calls {
 public:
  explicit Calls(const char *name) : name_(name) {}

  // Times a call if the kernel before `end` is still running. Returns whether the kernel was.
  template <class Call>
  bool time(cudaEvent_t end, Call call) {
    const cudaError_t state = cudaEventQuery(end);
    check(state == cudaSuccess || state == cudaErrorNotReady, "cudaEventQuery");
    // The runtime remembers even that an event is not ready.
    (void)cudaGetLastError();
    const double begin = now_ms();
    call();
    if (state == cudaSuccess) {
      return false;
    }
    times_.push_back(now_ms() - begin);
    return true;
  }

  std::size_t count() const { return times_.size(); }
  double longest() const { return times_.empty() ? 0 : *std::max_element(times_.begin(), times_.end()); }
  std::size_t beyond(double ms) const {
    return std::count_if(times_.begin(), times_.end(), [ms](double time) { return time >= ms; });
  }
  // Prints the number of calls, the median, and the five longest, in milliseconds, to the standard error.
  void print() {
    std::sort(times_.rbegin(), times_.rend());
    std::fprintf(stderr, "%-18s %6zu calls", name_, times_.size());
    if (!times_.empty()) {
      std::fprintf(stderr, ", median %.4f ms, longest", times_[times_.size() / 2]);
      for (std::size_t at = 0; at < std::min<std::size_t>(5, times_.size()); at++) {
        std::fprintf(stderr, " %.3f", times_[at]);
      }
    }
    std::fprintf(stderr, "\n");
  }

 private:
  const char *name_;
  std::vector<double> times_;
};

// The stream with the kernel, and the event after the kernel.
struct Busy {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  // The time of the shortest kernel.
  float shortest_ms = 1e9f;

  Busy() {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check(cudaEventCreate(&begin), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
  }

  void launch(void *block, unsigned value, unsigned long long nanoseconds) {
    check(cudaEventRecord(begin, stream), "cudaEventRecord");
    keep_busy<<<1, 1, 0, stream>>>(static_cast<unsigned *>(block), kLiveBytes / sizeof(unsigned), kStride, value,
                                   nanoseconds);
    check(cudaGetLastError(), "keep_busy");
    check(cudaEventRecord(end, stream), "cudaEventRecord");
  }

  // Waits for the kernel. Returns the number of wrong words in its block.
  std::size_t finish(void *block, unsigned value) {
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    float took = 0;
    check(cudaEventElapsedTime(&took, begin, end), "cudaEventElapsedTime");
    shortest_ms = std::min(shortest_ms, took);
    std::size_t wrong = 0;
    for (std::size_t at = 0; at < kLiveBytes / sizeof(unsigned); at += kStride) {
      unsigned word = 0;
      check(cudaMemcpy(&word, static_cast<unsigned *>(block) + at, sizeof word, cudaMemcpyDeviceToHost), "cudaMemcpy");
      wrong += word != value;
    }
    return wrong;
  }
};

// An allocator in a round, and the blocks around the holes.
class Round {
 public:
  Round(Busy &busy, const char *config, const cudaStream_t *streams, Random &random)
      : busy_(busy), streams_(streams), random_(random) {
    cachalot_options options = CACHALOT_OPTIONS_INIT;
    options.config = config;
    check_status(cachalot_create(&options, &allocator_), "cachalot_create");
    live_ = obtain(kLiveBytes, busy.stream);
    for (int at = 0; at < kBlocks; at++) {
      for (const cudaStream_t stream : {streams_[0], streams_[1], streams_[2], busy_.stream}) {
        void *block = obtain(kBlockBytes, stream);
        use(block, stream);
        (at % 4 == 3 ? holes_ : kept_).push_back(block);
      }
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  ~Round() {
    for (void *block : kept_) {
      free(block);
    }
    free(live_);
    check_status(cachalot_check_invariants(allocator_), "cachalot_check_invariants");
    check_status(cachalot_destroy(allocator_), "cachalot_destroy");
  }

  // Runs the kernel, and everything that is timed meanwhile.
  void run(unsigned number, Calls &requests, Calls &frees, Calls &upkeep) {
    busy_.launch(live_, number, kKernelNs);
    // The busy stream's holes are in use until the kernel ends: their pages move after an event.
    for (void *block : holes_) {
      frees.time(busy_.end, [&] { free(block); });
    }
    std::vector<std::pair<void *, cudaStream_t>> held;
    bool runs = true;
    for (int step = 0; runs && step < kSteps; step++) {
      if (step % kMaintainEvery == 0) {
        runs = upkeep.time(busy_.end, [&] {
          check_status(cachalot_maintain(allocator_, 0, kMaintainUs, nullptr), "cachalot_maintain");
        });
      } else if (held.size() == kMostHeld || (!held.empty() && random_.below(100) < 30)) {
        std::swap(held[random_.below(held.size())], held.back());
        runs = frees.time(busy_.end, [&] { free(held.back().first); });
        held.pop_back();
      } else {
        const cudaStream_t stream = streams_[random_.below(kStreams)];
        const std::size_t bytes = kFewestBytes + random_.below(kMostBytes - kFewestBytes);
        void *block = nullptr;
        runs = requests.time(busy_.end, [&] { block = obtain(bytes, stream); });
        use(block, stream);
        held.emplace_back(block, stream);
      }
    }
    for (const auto &[block, stream] : held) {
      free(block);
    }
  }

  std::size_t wrong_words(unsigned number) { return busy_.finish(live_, number); }

  cachalot_page_statistics pages() {
    cachalot_page_statistics pages = {};
    pages.struct_size = sizeof pages;
    check_status(cachalot_get_page_statistics(allocator_, 0, &pages), "cachalot_get_page_statistics");
    return pages;
  }

 private:
  void *obtain(std::size_t bytes, cudaStream_t stream) {
    void *block = nullptr;
    check_status(cachalot_malloc(allocator_, 0, bytes, stream, &block), "cachalot_malloc");
    return block;
  }

  void free(void *block) { check_status(cachalot_free(allocator_, block), "cachalot_free"); }

  void use(void *block, cudaStream_t stream) { check(cudaMemsetAsync(block, 7, 4096, stream), "cudaMemsetAsync"); }

  Busy &busy_;
  const cudaStream_t *streams_;
  Random &random_;
  cachalot_allocator *allocator_ = nullptr;
  void *live_ = nullptr;
  std::vector<void *> kept_, holes_;
};

// cachalot while a kernel runs. Prints the row of the table. Returns whether the calls kept the bound.
bool stitched(Busy &busy, const char *config) {
  Calls requests("cachalot_malloc"), frees("cachalot_free"), upkeep("cachalot_maintain");
  std::size_t moved = 0, created = 0, unmapped = 0, wrong = 0;
  cudaStream_t streams[kStreams];
  for (cudaStream_t &stream : streams) {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  Random random;
  for (unsigned number = 1; number <= kRounds; number++) {
    Round round(busy, config, streams, random);
    const cachalot_page_statistics before = round.pages();
    round.run(number, requests, frees, upkeep);
    const cachalot_page_statistics after = round.pages();
    const std::size_t moves = after.moved_bytes - before.moved_bytes;
    moved += moves;
    // Each move leaves an old mapping, which is stale until it is removed.
    unmapped += before.stale_bytes + moves - after.stale_bytes;
    created += after.mapped_bytes + after.spare_bytes - std::min(before.mapped_bytes + before.spare_bytes,
                                                                 after.mapped_bytes + after.spare_bytes);
    wrong += round.wrong_words(number);
  }
  const double longest = std::max({requests.longest(), frees.longest(), upkeep.longest()});
  std::printf("\"cachalot, `%s`\",%.1f,%zu,%.3f,%.3f,%.3f,%zu,%zu,%zu,%zu\n", config, busy.shortest_ms,
              requests.count() + frees.count() + upkeep.count(), requests.longest(), frees.longest(), upkeep.longest(),
              requests.beyond(kBoundMs) + frees.beyond(kBoundMs) + upkeep.beyond(kBoundMs), moved / kMiB,
              created / kMiB, unmapped / kMiB);
  const bool fine = longest < kBoundMs && moved > 0 && created > 0 && unmapped > 0 && wrong == 0;
  std::fprintf(stderr, "wrong words: %zu; longest call %.3f ms, bound %.0f ms: %s\n", wrong, longest, kBoundMs,
               fine ? "kept" : "FAILED");
  for (Calls *calls : {&requests, &frees, &upkeep}) {
    calls->print();
  }
  return fine;
}

// cudaMalloc and cudaFree while a kernel runs. Prints the row of the table.
void plain(Busy &busy) {
  Calls requests("cudaMalloc"), frees("cudaFree");
  void *live = nullptr;
  check(cudaMalloc(&live, kLiveBytes), "cudaMalloc");
  for (unsigned round = 0; round < 5; round++) {
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    busy.launch(live, round, kKernelNs);
    for (bool runs = true; runs;) {
      void *block = nullptr;
      requests.time(busy.end, [&] { check(cudaMalloc(&block, 8 * kMiB), "cudaMalloc"); });
      runs = frees.time(busy.end, [&] { check(cudaFree(block), "cudaFree"); });
    }
    check(busy.finish(live, round) == 0, "the kernel");
  }
  check(cudaFree(live), "cudaFree");
  std::printf("\"cudaMalloc, cudaFree\",%.1f,%zu,%.3f,%.3f,,%zu,,,\n", busy.shortest_ms,
              requests.count() + frees.count(), requests.longest(), frees.longest(),
              requests.beyond(kBoundMs) + frees.beyond(kBoundMs));
}

}  // namespace

int main(int count, char **arguments) {
  check(count <= 2, "no_wait [SETTINGS]: reading the arguments");
  check(cudaSetDevice(0), "cudaSetDevice");
  Busy busy, other;
  {
    // The first launch and the first write load code, which may wait for the device.
    void *warm = nullptr;
    check(cudaMalloc(&warm, kLiveBytes), "cudaMalloc");
    busy.launch(warm, 1, 1000);
    check(cudaMemsetAsync(warm, 0, 4096, busy.stream), "cudaMemsetAsync");
    check(cudaFree(warm), "cudaFree");
  }
  std::printf(
      "calls,\"shortest kernel, ms\",calls meanwhile,\"longest request, ms\",\"longest free, ms\",\"longest upkeep, ms\","
      "calls of 2 ms or more,\"moved, MiB\",\"created, MiB\",\"unmapped, MiB\"\n");
  const bool fine = stitched(busy, count > 1 ? arguments[1] : "policy:stitched,slack:0");
  plain(other);
  std::fflush(stdout);
  std::_Exit(fine ? 0 : 1);
}
#endif
