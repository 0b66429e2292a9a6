// Compares cachalot with the allocators of the CUDA toolkit, on equal work in the same run, through
// the public interfaces.
//
//   cargo build --release -p cachalot-library
//   nvcc -O2 -std=c++17 -Iinclude benches/gpu/peers.cu -o peers -Ltarget/release -l:libcachalot.a -lpthread -ldl -lm
//   ./peers
//   taskset --cpu-list 3 ./peers pair         or: ./peers threads
//
// Prints both tables, or the named table. The table `pair` can be bound to one processor.
//
// pair: one cached block is allocated and freed repeatedly. Median and quartiles of the rounds;
// each round measures the allocators in turn. cachalot has two rows: the block is split off a
// larger block and merged again, or a free block of the exact size without free neighbours is used.
//
// threads: each thread, on a stream of its own, fills and empties 64 slots with blocks of 512 B to
// 64 KiB in random order. The unit is millions of operations (allocations or frees) per second, in
// all threads together.
#include "check.h"

#include "cachalot.h"

#include <cub/util_allocator.cuh>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Plain {
  static constexpr const char *name = "cudaMalloc";
  static constexpr double effort = 0.01;
  void *obtain(std::size_t bytes, cudaStream_t) {
    void *block = nullptr;
    check(cudaMalloc(&block, bytes), "cudaMalloc");
    return block;
  }
  void free(void *block, cudaStream_t) { check(cudaFree(block), "cudaFree"); }
};

struct StreamOrdered {
  static constexpr const char *name = "cudaMallocAsync";
  static constexpr double effort = 0.3;
  StreamOrdered() {
    cudaMemPool_t pool;
    std::uint64_t keep = UINT64_MAX;
    check(cudaDeviceGetDefaultMemPool(&pool, 0), "cudaDeviceGetDefaultMemPool");
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute");
  }
  void *obtain(std::size_t bytes, cudaStream_t stream) {
    void *block = nullptr;
    check(cudaMallocAsync(&block, bytes, stream), "cudaMallocAsync");
    return block;
  }
  void free(void *block, cudaStream_t stream) { check(cudaFreeAsync(block, stream), "cudaFreeAsync"); }
};

struct Cub {
  static constexpr const char *name = "CUB";
  static constexpr double effort = 0.5;
  cub::CachingDeviceAllocator allocator{2, 9, 37, cub::CachingDeviceAllocator::INVALID_SIZE, true};
  void *obtain(std::size_t bytes, cudaStream_t stream) {
    void *block = nullptr;
    check(allocator.DeviceAllocate(&block, bytes, stream), "DeviceAllocate");
    return block;
  }
  void free(void *block, cudaStream_t) { check(allocator.DeviceFree(block), "DeviceFree"); }
};

struct Cachalot {
  static constexpr const char *name = "cachalot";
  static constexpr double effort = 1.0;
  cachalot_allocator *allocator = nullptr;
  Cachalot() {
    cachalot_options options = CACHALOT_OPTIONS_INIT;
    check(cachalot_create(&options, &allocator) == CACHALOT_OK, cachalot_last_error());
  }
  void *obtain(std::size_t bytes, cudaStream_t stream) {
    void *block = nullptr;
    check(cachalot_malloc(allocator, 0, bytes, stream, &block) == CACHALOT_OK, "cachalot_malloc");
    return block;
  }
  void free(void *block, cudaStream_t) { check(cachalot_free(allocator, block) == CACHALOT_OK, "cachalot_free"); }
};

struct CachalotBetween : Cachalot {
  static constexpr const char *name = "cachalot, one of that size";
};

// No preparation, except where the cached block must have neighbours.
template <class Allocator>
void prepare(Allocator &, std::size_t) {}

void prepare(CachalotBetween &allocator, std::size_t bytes) {
  // Segments contain one, two or many blocks, and a remainder: the third of four blocks has no free
  // neighbour.
  void *blocks[4];
  for (void *&block : blocks) {
    block = allocator.obtain(bytes, nullptr);
  }
  allocator.free(blocks[2], nullptr);
}

template <class Allocator>
double pair_ns(Allocator &allocator, std::size_t bytes) {
  const int count = std::max(20, static_cast<int>(20000 * Allocator::effort));
  const double start = now();
  for (int i = 0; i < count; i++) {
    allocator.free(allocator.obtain(bytes, nullptr), nullptr);
  }
  return (now() - start) / count * 1e9;
}

template <class Allocator>
double million_ops_a_second(Allocator &allocator, int threads) {
  const int count = std::max(300, static_cast<int>(300000 * Allocator::effort));
  std::vector<cudaStream_t> streams(threads);
  for (auto &stream : streams) {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  auto work = [&](int thread, int steps) {
    check(cudaSetDevice(0), "cudaSetDevice");
    std::uint64_t state = 88172645463325252ull + thread * 7919;
    auto random = [&] {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      return state;
    };
    void *slots[64] = {};
    for (int i = 0; i < steps; i++) {
      void *&slot = slots[random() & 63];
      if (slot) {
        allocator.free(slot, streams[thread]);
        slot = nullptr;
      } else {
        slot = allocator.obtain(512 + random() % 65536, streams[thread]);
      }
    }
    for (void *slot : slots) {
      if (slot) {
        allocator.free(slot, streams[thread]);
      }
    }
  };
  double seconds = 0;
  for (int steps : {count / 10, count}) {  // The first round warms the caches.
    std::vector<std::thread> running;
    const double start = now();
    for (int thread = 0; thread < threads; thread++) {
      running.emplace_back(work, thread, steps);
    }
    for (auto &thread : running) {
      thread.join();
    }
    seconds = now() - start;
  }
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return threads * static_cast<double>(count) / seconds / 1e6;
}

void print_median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::printf(" %.1f (%.1f–%.1f) |", values[values.size() / 2], values[values.size() / 4], values[values.size() * 3 / 4]);
}

template <class... Allocators>
void print_head(const char *of) {
  std::printf("| %s |", of);
  (std::printf(" %s |", Allocators::name), ...);
  std::printf("\n|---|");
  for (std::size_t column = 0; column < sizeof...(Allocators); column++) {
    std::printf("---|");
  }
}

template <class... Allocators>
void pairs(Allocators &...allocators) {
  constexpr int rounds = 21;
  print_head<Allocators...>("block");
  for (std::size_t bytes : {std::size_t{512}, std::size_t{4} << 10, std::size_t{1} << 20, std::size_t{8} << 20, std::size_t{64} << 20}) {
    std::vector<double> times[sizeof...(Allocators)];
    (prepare(allocators, bytes), ...);
    for (int round = 0; round <= rounds; round++) {
      int column = 0;
      (((round ? times[column].push_back(pair_ns(allocators, bytes)) : void(pair_ns(allocators, bytes))), column++), ...);
    }
    std::printf("\n| %zu %s |", bytes < 1024 ? bytes : bytes >> 10, bytes < 1024 ? "B" : "KiB");
    for (auto &column : times) {
      print_median(column);
    }
  }
  std::printf("\n\n");
}

template <class... Allocators>
void threads(Allocators &...allocators) {
  print_head<Allocators...>("threads");
  for (int count : {1, 2, 4, 8, 16}) {
    std::vector<double> rates[sizeof...(Allocators)];
    for (int round = 0; round < 5; round++) {
      int column = 0;
      ((rates[column++].push_back(million_ops_a_second(allocators, count))), ...);
    }
    std::printf("\n| %d |", count);
    for (auto &column : rates) {
      print_median(column);
    }
    std::fflush(stdout);
  }
  std::printf("\n");
}

}  // namespace

int main(int arguments, char **argument) {
  const std::string_view table = arguments > 1 ? argument[1] : "";
  check(arguments == 1 || arguments == 2 && (table == "pair" || table == "threads"), "peers [pair|threads]: reading the arguments");
  check(cudaSetDevice(0), "cudaSetDevice");
  check(cudaFree(nullptr), "cudaFree");
  Plain plain;
  StreamOrdered ordered;
  Cub cub;
  Cachalot cachalot;
  CachalotBetween between;
  if (table != "threads") {
    pairs(plain, ordered, cub, cachalot, between);
  }
  if (table != "pair") {
    threads(plain, ordered, cub, cachalot, between);
  }
  std::fflush(stdout);
  std::_Exit(0);
}
