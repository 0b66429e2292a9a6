// Replays recorded programs with real memory, under cachalot and under cudaMallocAsync.
//
//   nvcc -O2 -std=c++17 -Iinclude benches/gpu/recorded.cu -o recorded -Ltarget/release -l:libcachalot.a -lpthread -ldl -lm
//   ./recorded policy:stitched 3 tests/traces/mlp_seed.csv.gz ...
//   ./recorded cudaMallocAsync 3 tests/traces/mlp_seed.csv.gz ...
//
// The first argument is cudaMallocAsync, or settings of cachalot. The second argument is the number of passes. Every
// program runs on its own allocator, and all passes of a program on the same allocator. A record is replayed on
// one thread: memory is freed where the program freed it (`f`), what is live at the end is freed in the order of the
// requests, recorded `empty_cache` calls are left out, and graphs use the default pool. After each request, the first
// bytes of the block are written in the order of the stream.
//
// Prints a line of CSV for each program and pass. Both kinds of time include two readings of the clock for each call.
//
// live_bytes: the most requested bytes that are live at one time. driver_bytes: the most memory that the driver
// reports as used so far, beyond the memory used before the first request. own_bytes: the most memory reserved so
// far, as the allocator reports it. call_us: the time in all requests and frees. slow_us: the time in those that took
// more than 1 us, which are all that call the driver. longest_us: the longest call, and longest_bytes the size of its
// request (0 for a free). moved_bytes: pages moved so far.
#include "check.h"
#include "record.h"

#include "cachalot.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

// A call that takes longer may have called the driver.
constexpr double kSlowUs = 1;
// Only a call that takes longer can have changed the memory that the driver reports: cuMemCreate alone takes 9 us.
constexpr double kChangeUs = 5;
// Bytes written at the start of each block.
constexpr std::size_t kWritten = 4096;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Bytes of the device that are in use, as the driver counts them.
std::size_t used_bytes() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return total - free;
}

class Allocator {
 public:
  virtual ~Allocator() = default;
  virtual void *obtain(std::size_t bytes, cudaStream_t stream) = 0;
  virtual void free(void *block, cudaStream_t stream) = 0;
  // The most bytes reserved so far.
  virtual std::size_t reserved() = 0;
  virtual std::size_t moved() { return 0; }
};

class Cachalot : public Allocator {
 public:
  explicit Cachalot(const char *config) {
    cachalot_options options = CACHALOT_OPTIONS_INIT;
    options.config = config;
    check_status(cachalot_create(&options, &allocator_), "cachalot_create");
  }
  ~Cachalot() override { check_status(cachalot_destroy(allocator_), "cachalot_destroy"); }
  void *obtain(std::size_t bytes, cudaStream_t stream) override {
    void *block = nullptr;
    check_status(cachalot_malloc(allocator_, 0, bytes, stream, &block), "cachalot_malloc");
    return block;
  }
  void free(void *block, cudaStream_t) override { check_status(cachalot_free(allocator_, block), "cachalot_free"); }
  std::size_t reserved() override {
    cachalot_statistics statistics = CACHALOT_STATISTICS_INIT;
    check_status(cachalot_get_statistics(allocator_, 0, &statistics), "cachalot_get_statistics");
    return static_cast<std::size_t>(statistics.reserved_bytes.peak);
  }
  std::size_t moved() override {
    cachalot_page_statistics pages = {};
    pages.struct_size = sizeof pages;
    check_status(cachalot_get_page_statistics(allocator_, 0, &pages), "cachalot_get_page_statistics");
    return pages.moved_bytes;
  }

 private:
  cachalot_allocator *allocator_ = nullptr;
};

// A pool of the driver that keeps all its memory.
class StreamOrdered : public Allocator {
 public:
  StreamOrdered() {
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = 0;
    check(cudaMemPoolCreate(&pool_, &properties), "cudaMemPoolCreate");
    std::uint64_t keep = UINT64_MAX;
    check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute");
  }
  ~StreamOrdered() override { check(cudaMemPoolDestroy(pool_), "cudaMemPoolDestroy"); }
  void *obtain(std::size_t bytes, cudaStream_t stream) override {
    void *block = nullptr;
    check(cudaMallocFromPoolAsync(&block, bytes, pool_, stream), "cudaMallocFromPoolAsync");
    return block;
  }
  void free(void *block, cudaStream_t stream) override { check(cudaFreeAsync(block, stream), "cudaFreeAsync"); }
  std::size_t reserved() override {
    std::uint64_t bytes = 0;
    check(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemHigh, &bytes), "cudaMemPoolGetAttribute");
    return bytes;
  }

 private:
  cudaMemPool_t pool_ = nullptr;
};

// The times of the calls of a pass.
struct Times {
  double all_us = 0, slow_us = 0, longest_us = 0;
  std::size_t slow = 0, longest_bytes = 0;

  void add(double us, std::size_t bytes) {
    all_us += us;
    if (us > kSlowUs) {
      slow_us += us;
      slow++;
    }
    if (us > longest_us) {
      longest_us = us;
      longest_bytes = bytes;
    }
  }
};

// The runs of one program on one allocator.
class Run {
 public:
  Run(const Program &program, const char *config) : program_(program), streams_(program.streams, nullptr) {
    for (std::size_t at = 1; at < streams_.size(); at++) {
      check(cudaStreamCreateWithFlags(&streams_[at], cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    }
    const bool ordered = std::string_view(config) == "cudaMallocAsync";
    allocator_.reset(ordered ? static_cast<Allocator *>(new StreamOrdered) : new Cachalot(config));
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    base_ = used_bytes();
  }

  ~Run() {
    allocator_.reset();
    for (std::size_t at = 1; at < streams_.size(); at++) {
      check(cudaStreamDestroy(streams_[at]), "cudaStreamDestroy");
    }
  }

  Times pass() {
    Times times;
    std::vector<void *> blocks(program_.blocks, nullptr);
    for (const Step &step : program_.steps) {
      const cudaStream_t stream = streams_[step.stream];
      void *&block = blocks[step.block];
      const double start = now_us();
      if (step.requests) {
        block = allocator_->obtain(step.bytes, stream);
      } else {
        allocator_->free(block, stream);
      }
      const double took = now_us() - start;
      times.add(took, step.requests ? step.bytes : 0);
      if (took > kChangeUs) {
        sample();
      }
      if (step.requests) {
        check(cudaMemsetAsync(block, 1, std::min(step.bytes, kWritten), stream), "cudaMemsetAsync");
      }
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    sample();
    return times;
  }

  std::size_t driver_bytes() const { return most_ - std::min(base_, most_); }
  Allocator &allocator() { return *allocator_; }

 private:
  void sample() { most_ = std::max(most_, used_bytes()); }

  const Program &program_;
  std::vector<cudaStream_t> streams_;
  std::unique_ptr<Allocator> allocator_;
  std::size_t base_ = 0, most_ = 0;
};

}  // namespace

int main(int count, char **arguments) {
  const int passes = count > 2 ? std::atoi(arguments[2]) : 0;
  check(count > 3 && passes > 0, "recorded ALLOCATOR PASSES RECORD...: reading the arguments");
  check(cudaSetDevice(0), "cudaSetDevice");
  void *written = nullptr;
  check(cudaMalloc(&written, kWritten), "cudaMalloc");
  check(cudaMemset(written, 0, kWritten), "cudaMemset");
  std::printf(
      "program,allocator,pass,requests,live_bytes,driver_bytes,own_bytes,call_us,slow_us,slow_calls,longest_us,"
      "longest_bytes,moved_bytes\n");
  for (int at = 3; at < count; at++) {
    const Program program = read(arguments[at]);
    Run run(program, arguments[1]);
    for (int pass = 1; pass <= passes; pass++) {
      const Times times = run.pass();
      std::printf("%s,\"%s\",%d,%u,%zu,%zu,%zu,%.1f,%.1f,%zu,%.1f,%zu,%zu\n", program.name.c_str(), arguments[1], pass,
                  program.blocks, program.peak_live, run.driver_bytes(), run.allocator().reserved(), times.all_us,
                  times.slow_us, times.slow, times.longest_us, times.longest_bytes, run.allocator().moved());
      std::fflush(stdout);
    }
  }
  return 0;
}
