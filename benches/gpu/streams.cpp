// Blocks that two streams use: each thread obtains a block on one stream, reports its use by another, and frees it.
//
//   streams ROUNDS [CONFIG...]     cachalot, under each configuration; with -DWITH_TORCH: PyTorch's own allocator
//
// Prints a line of CSV for each round and number of threads: allocator, threads, million cycles a second, and the
// microseconds of a cycle that half of the cycles and 99 of 100 stay below. No work is queued, so that the device is not
// what is measured. The allocators differ in when they record events, and when they poll them.
#include "check.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#ifdef WITH_TORCH
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

using Clock = std::chrono::steady_clock;
// Obtains a block of some bytes on the first stream, reports its use by the second, and frees it.
using Cycle = std::function<void(size_t, cudaStream_t, cudaStream_t)>;

constexpr int CYCLES = 20000;

static double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// Sizes of 16 kinds in turn, from 4 KiB to 1 MiB.
static size_t bytes_of(int cycle) { return 4096 + size_t{65536} * (cycle % 16); }

static void measure(const std::string &name, int threads, const Cycle &cycle,
                    const std::function<void(cudaStream_t)> &ended) {
  std::vector<cudaStream_t> streams(2 * threads);
  for (cudaStream_t &stream : streams) {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  std::vector<std::vector<double>> took(threads);
  double elapsed = 0;
  for (const int cycles : {CYCLES / 10, CYCLES}) {  // The first round fills the cache.
    std::vector<std::thread> workers;
    const Clock::time_point begin = Clock::now();
    for (int number = 0; number < threads; ++number) {
      workers.emplace_back([&, number] {
        check(cudaSetDevice(0), "cudaSetDevice");
        std::vector<double> &mine = took[number];
        mine.clear();
        for (int at = 0; at < cycles; ++at) {
          const Clock::time_point before = Clock::now();
          cycle(bytes_of(at), streams[2 * number], streams[2 * number + 1]);
          mine.push_back(seconds(Clock::now() - before) * 1e6);
        }
      });
    }
    for (std::thread &worker : workers) {
      worker.join();
    }
    elapsed = seconds(Clock::now() - begin);
  }
  std::vector<double> all;
  for (const std::vector<double> &mine : took) {
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::sort(all.begin(), all.end());
  std::printf("%s;%d;%.4f;%.2f;%.2f\n", name.c_str(), threads, all.size() / elapsed / 1e6, all[all.size() / 2],
              all[all.size() * 99 / 100]);
  std::fflush(stdout);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  for (const cudaStream_t stream : streams) {
    ended(stream);
    check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  }
}

static void measure_all(const std::string &name, const Cycle &cycle, const std::function<void(cudaStream_t)> &ended) {
  for (const int threads : {1, 4, 16}) {
    measure(name, threads, cycle, ended);
  }
}

int main(int count, char **arguments) {
  check(count >= 2, "usage: streams ROUNDS [CONFIG...]");
  check(cudaFree(nullptr), "cudaFree");
  for (int round = 0; round < std::atoi(arguments[1]); ++round) {
#ifdef WITH_TORCH
    auto *const torch = c10::cuda::CUDACachingAllocator::get();
    torch->init(1);
    const auto cycle = [torch](size_t bytes, cudaStream_t own, cudaStream_t other) {
      const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(own, 0));
      const c10::DataPtr block = torch->allocate(bytes);
      torch->recordStream(block, c10::cuda::getStreamFromExternal(other, 0));
    };
    measure_all("PyTorch", cycle, [](cudaStream_t) {});
#else
    for (int number = 2; number < count; ++number) {
      // With the promise that the ends of streams are reported, a use need not be kept by an event of its own.
      for (const uint32_t flags : {0u, uint32_t{CACHALOT_STREAMS_REPORTED}}) {
        cachalot_options options = CACHALOT_OPTIONS_INIT;
        options.config = arguments[number];
        options.flags = flags;
        cachalot_allocator *allocator = nullptr;
        check_status(cachalot_create(&options, &allocator), "cachalot_create");
        const auto handle = [](cudaStream_t stream) { return reinterpret_cast<cachalot_stream>(stream); };
        const auto cycle = [&](size_t bytes, cudaStream_t own, cudaStream_t other) {
          void *block = nullptr;
          check_status(cachalot_malloc(allocator, 0, bytes, handle(own), &block), "cachalot_malloc");
          check_status(cachalot_record_stream(allocator, block, handle(other)), "cachalot_record_stream");
          check_status(cachalot_free(allocator, block), "cachalot_free");
        };
        const std::string name = std::string(arguments[number]) + (flags == 0 ? "" : ", reported");
        measure_all(name, cycle, [&](cudaStream_t stream) {
          check_status(cachalot_stream_destroyed(allocator, 0, handle(stream)), "cachalot_stream_destroyed");
        });
        check_status(cachalot_destroy(allocator), "cachalot_destroy");
      }
    }
#endif
  }
}
