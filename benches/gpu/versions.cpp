// What two builds of the library are compared by: cached pairs, blocks that two streams use, and parked memory.
//
//   versions NAME
//
// Streams are reported if the program promises so: otherwise a use records an event, since the stream may end before the free.
// Prints lines of CSV: the name, the configuration, what was measured, and the figure with its unit. Pairs and cycles are the median
// of rounds, with blocks of 4 KiB to 1 MiB in turn. Parking keeps 8 GiB in blocks of 8 MiB, and keeps the pinned memory of the host,
// so that the rates after the first round are those of the link.
#include "check.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

using Clock = std::chrono::steady_clock;

constexpr size_t MIB = size_t{1} << 20;
constexpr size_t PARKED_BLOCK = 8 * MIB, PARKED_BLOCKS = 1024;

#ifdef CACHALOT_STREAMS_REPORTED
constexpr uint32_t REPORTED = CACHALOT_STREAMS_REPORTED;
#else
constexpr uint32_t REPORTED = 0;
#endif

static double seconds(const std::function<void()> &work) {
  const Clock::time_point begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

static double median(std::vector<double> figures) {
  std::sort(figures.begin(), figures.end());
  return figures[figures.size() / 2];
}

static cachalot_stream handle(cudaStream_t stream) { return reinterpret_cast<cachalot_stream>(stream); }

struct Library {
  const char *name, *config;
  cachalot_allocator *allocator = nullptr;
  cudaStream_t own = nullptr, other = nullptr;

  Library(const char *name, const char *config, uint32_t flags = 0) : name(name), config(config) {
    cachalot_options options = CACHALOT_OPTIONS_INIT;
    options.config = config;
    options.flags = flags;
    check_status(cachalot_create(&options, &allocator), "cachalot_create");
    check(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }

  ~Library() {
    check_status(cachalot_destroy(allocator), "cachalot_destroy");
    check(cudaStreamDestroy(own), "cudaStreamDestroy");
    check(cudaStreamDestroy(other), "cudaStreamDestroy");
  }

  void *obtain(size_t bytes) {
    void *block = nullptr;
    check_status(cachalot_malloc(allocator, 0, bytes, handle(own), &block), "cachalot_malloc");
    return block;
  }

  void free(void *block) { check_status(cachalot_free(allocator, block), "cachalot_free"); }

  void print(const char *what, double figure, const char *unit) {
    std::printf("%s,\"%s\",%s,%.2f,%s\n", name, config, what, figure, unit);
    std::fflush(stdout);
  }

  // Nanoseconds of a pair, or of a cycle, in which the other stream uses the block.
  void measure(const char *what, bool shared) {
    constexpr int CALLS = 20000;
    std::vector<double> rounds;
    for (int round = 0; round < 22; ++round) {
      const double took = seconds([&] {
        for (int call = 0; call < CALLS; ++call) {
          void *block = obtain(4096 + size_t{65536} * (call % 16));
          if (shared) {
            check_status(cachalot_record_stream(allocator, block, handle(other)), "cachalot_record_stream");
          }
          free(block);
        }
      });
      if (round > 0) {  // The first round fills the cache.
        rounds.push_back(took / CALLS * 1e9);
      }
    }
    print(what, median(rounds), "ns");
  }

  void park() {
    std::vector<void *> blocks;
    for (size_t at = 0; at < PARKED_BLOCKS; ++at) {
      blocks.push_back(obtain(PARKED_BLOCK));
      check(cudaMemsetAsync(blocks.back(), static_cast<int>(at), PARKED_BLOCK, own), "cudaMemsetAsync");
    }
    const double gib = static_cast<double>(PARKED_BLOCK * PARKED_BLOCKS) / (1 << 30);
    check_status(cachalot_retain_host_memory(allocator, 0, 2 * PARKED_BLOCK * PARKED_BLOCKS),
                 "cachalot_retain_host_memory");
    const cachalot_park_target target = {sizeof target, 0, handle(own), CACHALOT_PARK_STREAM, 0};
    std::vector<double> away, back;
    for (int round = 0; round < 11; ++round) {
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      const double parked =
          seconds([&] { check_status(cachalot_park(allocator, 0, &target, nullptr), "cachalot_park"); });
      const double woken = seconds([&] {
        check_status(cachalot_wake(allocator, 0, &target), "cachalot_wake");
        check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      });
      if (round > 0) {
        away.push_back(gib / parked);
        back.push_back(gib / woken);
      }
    }
    print("park", median(away), "GiB/s");
    print("wake", median(back), "GiB/s");
    unsigned char first = 0;
    for (size_t at = 0; at < PARKED_BLOCKS; ++at) {
      check(cudaMemcpy(&first, blocks[at], 1, cudaMemcpyDeviceToHost), "cudaMemcpy");
      check(first == static_cast<unsigned char>(at), "the contents of a block");
      free(blocks[at]);
    }
  }
};

int main(int count, char **arguments) {
  check(count == 2, "usage: versions NAME");
  check(cudaFree(nullptr), "cudaFree");
  for (const char *config : {"policy:caching", "policy:caching,parity:False", "policy:stitched"}) {
    Library library(arguments[1], config);
    library.measure("pair", false);
    library.measure("cycle of two streams", true);
    Library reported(arguments[1], config, REPORTED);
    reported.measure("cycle of two reported streams", true);
  }
  for (const char *config : {"expandable_segments:True", "policy:stitched"}) {
    Library(arguments[1], config).park();
  }
}
