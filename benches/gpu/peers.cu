// Compares cachalot with the allocators that a program would use otherwise, on the same work in the same run, through
// the public interfaces: those of the CUDA toolkit, and where their headers are, PyTorch's, and RMM's arena and pool.
//
//   cargo build --release -p cachalot-library
//   nvcc -O2 -std=c++17 -Iinclude benches/gpu/peers.cu -o peers -Ltarget/release -l:libcachalot.a -lpthread -ldl -lm
//   ./peers
//
// With PyTorch (-DWITH_TORCH), in the folder TORCH of the Python package:
//   nvcc -DWITH_TORCH -std=c++20 -I$TORCH/include … -L$TORCH/lib -lc10_cuda -lc10 -Xlinker -rpath,$TORCH/lib
// With RMM (-DWITH_RMM), whose headers are in the PyPI packages librmm-cu13 and rapids-logger:
//   nvcc -DWITH_RMM -std=c++20 --expt-relaxed-constexpr -I… … -lrmm -lrapids_logger
//   taskset --cpu-list 3 ./peers pair         or: cold, threads, programs RECORD...
// FORMER names the libcachalot.so of another build, which is measured as well.
//
// Prints the named table, as CSV. All tables but `threads` can be bound to one processor.
//
// pair: one cached block is allocated and freed repeatedly. Median and quartiles of the rounds;
// each round measures the allocators in turn. cachalot has two rows: the block is split off a
// larger block and merged again, or a free block of the exact size without free neighbours is used. The floor is a lock
// around a list of blocks of each size, with two counters: what remains when nothing has to be decided.
//
// cold: microseconds to obtain a block of which nothing is cached. Between the rounds each allocator gives all memory
// back, except RMM's, which keep their memory.
//
// threads: each thread, on its own stream, fills and empties 64 slots with blocks of 512 B to
// 64 KiB in random order. The unit is millions of operations (allocations or frees) per second, in
// all threads together.
//
// programs: nanoseconds for an allocation or a free of a recorded program, once the cache holds what the program needs.
// A record is replayed as recorded.cu does, without the writes. RMM's are left out: programs need more than their 8 GiB.
#include "check.h"
#include "record.h"

#include "cachalot.h"

#include <cub/util_allocator.cuh>
#ifdef WITH_TORCH
#include <c10/cuda/CUDACachingAllocator.h>
#endif
#ifdef WITH_RMM
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
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
  void free(void *block, std::size_t, cudaStream_t) { check(cudaFree(block), "cudaFree"); }
  void empty() {}
};

struct StreamOrdered {
  static constexpr const char *name = "cudaMallocAsync";
  static constexpr double effort = 0.3;
  cudaMemPool_t pool;
  StreamOrdered() {
    std::uint64_t keep = UINT64_MAX;
    check(cudaDeviceGetDefaultMemPool(&pool, 0), "cudaDeviceGetDefaultMemPool");
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute");
  }
  void *obtain(std::size_t bytes, cudaStream_t stream) {
    void *block = nullptr;
    check(cudaMallocAsync(&block, bytes, stream), "cudaMallocAsync");
    return block;
  }
  void free(void *block, std::size_t, cudaStream_t stream) { check(cudaFreeAsync(block, stream), "cudaFreeAsync"); }
  void empty() {
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check(cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo");
  }
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
  void free(void *block, std::size_t, cudaStream_t) { check(allocator.DeviceFree(block), "DeviceFree"); }
  void empty() { check(allocator.FreeAllCached(), "FreeAllCached"); }
};

#ifdef WITH_TORCH
struct Torch {
  static constexpr const char *name = "PyTorch";
  static constexpr double effort = 0.5;
  c10::cuda::CUDACachingAllocator::CUDAAllocator *allocator = c10::cuda::CUDACachingAllocator::get();
  Torch() { allocator->init(1); }
  void *obtain(std::size_t bytes, cudaStream_t stream) { return allocator->raw_alloc_with_stream(bytes, stream); }
  void free(void *block, std::size_t, cudaStream_t) { allocator->raw_delete(block); }
  void empty() { allocator->emptyCache(); }
};
#endif

#ifdef WITH_RMM
template <class Resource>
struct Rmm {
  static constexpr double effort = 0.5;
  static constexpr std::size_t alignment = 256;
  rmm::mr::cuda_memory_resource device;
  Resource resource{device, std::size_t{8} << 30};
  void *obtain(std::size_t bytes, cudaStream_t stream) { return resource.allocate(cuda::stream_ref{stream}, bytes, alignment); }
  void free(void *block, std::size_t bytes, cudaStream_t stream) {
    resource.deallocate(cuda::stream_ref{stream}, block, bytes, alignment);
  }
  void empty() {}
};

struct Arena : Rmm<rmm::mr::arena_memory_resource> {
  static constexpr const char *name = "RMM's arena";
};

struct Pool : Rmm<rmm::mr::pool_memory_resource> {
  static constexpr const char *name = "RMM's pool";
};
#endif

// The least that an allocator with statistics does: it takes the last free block of the size from a list, under a lock.
struct Floor {
  static constexpr const char *name = "the floor";
  static constexpr double effort = 1.0;
  std::atomic<bool> locked{false};
  std::uint64_t live = 0, requests = 0;
  std::vector<void *> of_size[48];
  std::vector<void *> &list(std::size_t bytes) { return of_size[64 - __builtin_clzll((bytes - 1) >> 9 | 1)]; }
  void lock() {
    while (locked.exchange(true, std::memory_order_acquire)) {
    }
  }
  void *obtain(std::size_t bytes, cudaStream_t) {
    auto &blocks = list(bytes);
    lock();
    live += bytes, requests++;
    void *block = &blocks;
    if (!blocks.empty()) {
      block = blocks.back();
      blocks.pop_back();
    }
    locked.store(false, std::memory_order_release);
    return block;
  }
  void free(void *block, std::size_t bytes, cudaStream_t) {
    auto &blocks = list(bytes);
    lock();
    live -= bytes;
    blocks.push_back(block);
    locked.store(false, std::memory_order_release);
  }
};

struct Cachalot {
  static constexpr const char *name = "cachalot", *name_between = "cachalot, one of that size";
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
  void free(void *block, std::size_t, cudaStream_t) { check(cachalot_free(allocator, block) == CACHALOT_OK, "cachalot_free"); }
  void empty() { check(cachalot_empty_cache(allocator, 0) == CACHALOT_OK, "cachalot_empty_cache"); }
};

// Another build of the library.
struct Former {
  static constexpr const char *name = "another build", *name_between = "another build, one of that size";
  static constexpr double effort = 1.0;
  void *library;
  decltype(&cachalot_malloc) malloc_of = function<decltype(&cachalot_malloc)>("cachalot_malloc");
  decltype(&cachalot_free) free_of = function<decltype(&cachalot_free)>("cachalot_free");
  decltype(&cachalot_empty_cache) empty_of = function<decltype(&cachalot_empty_cache)>("cachalot_empty_cache");
  cachalot_allocator *allocator = nullptr;
  explicit Former(const char *path) : library(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    check(library != nullptr, path);
    cachalot_options options = CACHALOT_OPTIONS_INIT;
    check(function<decltype(&cachalot_create)>("cachalot_create")(&options, &allocator) == CACHALOT_OK, "cachalot_create");
  }
  template <class Function>
  Function function(const char *name) {
    void *found = dlsym(library, name);
    check(found != nullptr, name);
    return reinterpret_cast<Function>(found);
  }
  void *obtain(std::size_t bytes, cudaStream_t stream) {
    void *block = nullptr;
    check(malloc_of(allocator, 0, bytes, stream, &block) == CACHALOT_OK, "cachalot_malloc");
    return block;
  }
  void free(void *block, std::size_t, cudaStream_t) { check(free_of(allocator, block) == CACHALOT_OK, "cachalot_free"); }
  void empty() { check(empty_of(allocator, 0) == CACHALOT_OK, "cachalot_empty_cache"); }
};

template <class Library>
struct Between : Library {
  static constexpr const char *name = Library::name_between;
  using Library::Library;
};

// No preparation, except where the cached block must have neighbours.
template <class Allocator>
void prepare(Allocator &, std::size_t) {}

template <class Library>
void prepare(Between<Library> &allocator, std::size_t bytes) {
  // Segments contain one, two or many blocks, and a remainder: the third of four blocks has no free
  // neighbour.
  void *blocks[4];
  for (void *&block : blocks) {
    block = allocator.obtain(bytes, nullptr);
  }
  allocator.free(blocks[2], bytes, nullptr);
}

template <class Allocator>
double pair_ns(Allocator &allocator, std::size_t bytes) {
  const int count = std::max(20, static_cast<int>(20000 * Allocator::effort));
  const double start = now();
  for (int i = 0; i < count; i++) {
    allocator.free(allocator.obtain(bytes, nullptr), bytes, nullptr);
  }
  return (now() - start) / count * 1e9;
}

template <class Allocator>
double cold_us(Allocator &allocator, std::size_t bytes) {
  allocator.empty();
  const double start = now();
  void *block = allocator.obtain(bytes, nullptr);
  const double end = now();
  allocator.free(block, bytes, nullptr);
  return (end - start) * 1e6;
}

template <class Allocator>
double million_ops_a_second(Allocator &allocator, int threads) {
  // An allocator that serves one thread at a time gets as many steps from all threads as from one.
  const double share = Allocator::effort < 1 ? Allocator::effort / threads : 1;
  const int count = std::max(300, static_cast<int>(300000 * share));
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
    struct {
      void *block;
      std::size_t bytes;
    } slots[64] = {};
    for (int i = 0; i < steps; i++) {
      auto &[block, bytes] = slots[random() & 63];
      if (block) {
        allocator.free(block, bytes, streams[thread]);
        block = nullptr;
      } else {
        bytes = 512 + random() % 65536;
        block = allocator.obtain(bytes, streams[thread]);
      }
    }
    for (auto &[block, bytes] : slots) {
      if (block) {
        allocator.free(block, bytes, streams[thread]);
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
  std::printf(",%.1f,%.1f,%.1f", values[values.size() / 2], values[values.size() / 4], values[values.size() * 3 / 4]);
}

template <class... Allocators>
void print_head(const char *of) {
  std::printf("%s", of);
  ((std::printf(",\"%s\",\"%s from\",\"%s to\"", Allocators::name, Allocators::name, Allocators::name)), ...);
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
    std::printf("\n%zu %s", bytes < 1024 ? bytes : bytes >> 10, bytes < 1024 ? "B" : "KiB");
    for (auto &column : times) {
      print_median(column);
    }
  }
  std::printf("\n\n");
}

template <class... Allocators>
void colds(Allocators &...allocators) {
  constexpr int rounds = 41;
  print_head<Allocators...>("block");
  for (std::size_t mebibytes : {20, 100, 1024}) {
    std::vector<double> times[sizeof...(Allocators)];
    for (int round = 0; round < rounds; round++) {
      int column = 0;
      ((times[column++].push_back(cold_us(allocators, mebibytes << 20))), ...);
    }
    std::printf("\n%zu MiB", mebibytes);
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
    std::printf("\n%d", count);
    for (auto &column : rates) {
      print_median(column);
    }
    std::fflush(stdout);
  }
  std::printf("\n");
}

// Adds nanoseconds an operation of three passes, after two that fill the cache, and gives all memory back.
template <class Allocator>
void program_ns(Allocator &allocator, const Program &program, const std::vector<cudaStream_t> &streams, std::vector<double> &times) {
  std::vector<void *> blocks(program.blocks, nullptr);
  for (int pass = 0; pass < 5; pass++) {
    const double start = now();
    for (const Step &step : program.steps) {
      void *&block = blocks[step.block];
      if (step.requests) {
        block = allocator.obtain(step.bytes, streams[step.stream]);
      } else {
        allocator.free(block, step.bytes, streams[step.stream]);
      }
    }
    if (pass >= 2) {
      times.push_back((now() - start) / program.steps.size() * 1e9);
    }
  }
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  allocator.empty();
}

template <class... Allocators>
void programs(const std::vector<std::string> &records, Allocators &...allocators) {
  constexpr int rounds = 5;
  print_head<Allocators...>("program");
  for (const std::string &record : records) {
    const Program program = read(record);
    std::vector<cudaStream_t> streams(program.streams, nullptr);
    for (std::size_t at = 1; at < streams.size(); at++) {
      check(cudaStreamCreateWithFlags(&streams[at], cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    }
    std::vector<double> times[sizeof...(Allocators)];
    for (int round = 0; round < rounds; round++) {
      int column = 0;
      (program_ns(allocators, program, streams, times[column++]), ...);
    }
    std::printf("\n%s", program.name.c_str());
    for (auto &column : times) {
      print_median(column);
    }
    std::fflush(stdout);
  }
  std::printf("\n");
}

}  // namespace

int main(int arguments, char **argument) {
  const std::string_view table = arguments > 1 ? argument[1] : "";
  const std::vector<std::string> records(argument + std::min(arguments, 2), argument + arguments);
  const bool known = table == "pair" || table == "cold" || table == "threads" || table == "programs";
  check(known && records.empty() == (table != "programs"), "peers pair|cold|threads|programs RECORD...: reading the arguments");
  check(cudaSetDevice(0), "cudaSetDevice");
  check(cudaFree(nullptr), "cudaFree");
  Plain plain;
  StreamOrdered ordered;
  Cub cub;
  Cachalot cachalot;
#ifdef WITH_TORCH
  Torch torch;
  const auto of_torch = std::tie(torch);
#else
  const std::tuple<> of_torch;
#endif
#ifdef WITH_RMM
  Arena arena;
  Pool pool;
  const auto of_rmm = std::tie(arena, pool);
#else
  const std::tuple<> of_rmm;
#endif
  Floor least;
  const auto measure = [&](auto former, auto former_between) {
    const auto driver = std::tie(ordered, cub);
    if (table == "programs") {
      const auto one = [&](auto &...allocators) { programs(records, allocators...); };
      std::apply(one, std::tuple_cat(driver, of_torch, former, std::tie(cachalot)));
      return;
    }
    Between<Cachalot> between;
    const auto peers = std::tuple_cat(std::tie(plain), driver, of_torch, of_rmm);
    if (table == "pair") {
      const auto all = std::tuple_cat(peers, std::tie(least), former, former_between, std::tie(cachalot, between));
      std::apply([](auto &...allocators) { pairs(allocators...); }, all);
    } else if (table == "cold") {
      std::apply([](auto &...allocators) { colds(allocators...); }, std::tuple_cat(peers, former, std::tie(cachalot)));
    } else {
      const auto all = std::tuple_cat(peers, former, std::tie(cachalot, between));
      std::apply([](auto &...allocators) { threads(allocators...); }, all);
    }
  };
  if (const char *path = std::getenv("FORMER")) {
    Former former(path);
    Between<Former> between(path);
    measure(std::tie(former), std::tie(between));
  } else {
    measure(std::tuple<>(), std::tuple<>());
  }
  std::fflush(stdout);
  std::_Exit(0);
}
