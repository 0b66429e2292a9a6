// Pinned memory of the host: an allocator of cachalot with CACHALOT_HOST, compared with the driver's own cuMemHostAlloc.
//
//   pinned ready GIB        the time until so much pinned memory is ready, and until it is given back
//   pinned copy MIB         the rates of copies to and from the device, in MiB/s
//   pinned pair             a request and a free of a cached block, in nanoseconds
//   pinned behind           the time to give a segment back while a stream of the device works for 100 ms
//   pinned trace NAME MIB   pinned memory / memory asked for, over a made-up program with so much key-value cache
//
// Prints lines of `what;allocator;figures`. Uses the driver alone, and so runs on the emulated driver, too.
//
// The programs of `trace` use one allocator, and numbers of a linear congruential generator that starts at 1:
//   images  a loader of 9 batches: 256 x 3 x 224 x 224 floats, and 256 labels of 8 bytes
//   text    a loader of 17 batches: three times 64 x n numbers of 8 bytes, n from 64 to 2048
//   audio   a loader of 17 batches: 32 x n floats, n from 80,000 to 320,000 (5 to 20 s at 16 kHz), and 32 x 8 bytes
//   chunks  a cache of sequences of 64 to 4096 tokens, in chunks of 256 tokens of 128 KiB each, the last one shorter;
//           the oldest sequences leave when there is no room
//   layers  the same sequences rounded up to 16 tokens, in 32 layers of one block each
//   mixed   images, text and chunks in turn
// A loader obtains the blocks of a batch, copies from them, and frees those of its oldest batch when their copies are
// done. A cache copies to its blocks, and frees those of the oldest sequences. Each program has 1000 steps, and its line
// has: most MiB asked for, pinned / asked, the same with powers of two (PyTorch's rule), requests, segments obtained and
// given back, microseconds of a request, and milliseconds of the longest.
#include "cachalot.h"

#include <cuda.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;

constexpr size_t MIB = size_t{1} << 20;

static void check(CUresult code, const char *what) {
  if (code != CUDA_SUCCESS) {
    std::fprintf(stderr, "%s: CUDA result %d\n", what, static_cast<int>(code));
    std::exit(1);
  }
}

static void check(cachalot_status status, const char *what) {
  if (status != CACHALOT_OK) {
    std::fprintf(stderr, "%s: %s\n", what, cachalot_last_error());
    std::exit(1);
  }
}

#define CUDA(call) check(call, #call)
#define OURS(call) check(call, #call)

static double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

static cachalot_stream handle(CUstream stream) { return reinterpret_cast<cachalot_stream>(stream); }

// An allocator of host memory.
struct Host {
  cachalot_allocator *allocator = nullptr;

  Host() {
    cachalot_options options = CACHALOT_OPTIONS_INIT;
    const int first = 0;
    options.flags = CACHALOT_HOST;
    options.devices = &first;
    options.device_count = 1;
    const char *config = std::getenv("PINNED_CONFIG");
    options.config = config;
    OURS(cachalot_create(&options, &allocator));
  }
  ~Host() { OURS(cachalot_destroy(allocator)); }

  void *malloc(size_t bytes) {
    void *block = nullptr;
    OURS(cachalot_malloc(allocator, 0, bytes, nullptr, &block));
    return block;
  }
  void free(void *block) { OURS(cachalot_free(allocator, block)); }
  void used_by(void *block, CUstream stream) { OURS(cachalot_record_use(allocator, block, handle(stream))); }
  cachalot_statistics stats() {
    cachalot_statistics stats = CACHALOT_STATISTICS_INIT;
    OURS(cachalot_get_statistics(allocator, 0, &stats));
    return stats;
  }
};

static void ready_ours(size_t bytes) {
  Host host;
  Clock::time_point begin = Clock::now();
  void *const block = host.malloc(bytes);
  const double had = since(begin);
  host.free(block);
  begin = Clock::now();
  OURS(cachalot_empty_cache(host.allocator, 0));
  std::printf("ready;cachalot;%.4f;%.4f\n", had, since(begin));
}

static void ready_theirs(size_t bytes) {
  Clock::time_point begin = Clock::now();
  void *block = nullptr;
  CUDA(cuMemHostAlloc(&block, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  const double had = since(begin);
  begin = Clock::now();
  CUDA(cuMemFreeHost(block));
  std::printf("ready;cuMemHostAlloc;%.4f;%.4f\n", had, since(begin));
}

// The first to touch memory of a virtual machine pays for the host's: each comes first once.
static void ready(size_t bytes) {
  ready_ours(bytes);
  ready_theirs(bytes);
  ready_theirs(bytes);
  ready_ours(bytes);
}

static void copy(size_t bytes, CUstream stream) {
  constexpr int TIMES = 8;
  Host host;
  CUdeviceptr device = 0;
  CUDA(cuMemAlloc(&device, bytes));
  void *const ours = host.malloc(bytes);
  void *theirs = nullptr;
  CUDA(cuMemHostAlloc(&theirs, bytes, CU_MEMHOSTALLOC_PORTABLE));
  std::memset(ours, 1, bytes);
  std::memset(theirs, 1, bytes);
  const auto rate = [&](const std::function<void()> &once) {
    once();
    CUDA(cuStreamSynchronize(stream));
    const Clock::time_point begin = Clock::now();
    for (int time = 0; time < TIMES; ++time) {
      once();
    }
    CUDA(cuStreamSynchronize(stream));
    return static_cast<double>(bytes) * TIMES / since(begin) / static_cast<double>(MIB);
  };
  for (void *const memory : {ours, theirs}) {
    const double up = rate([&] { CUDA(cuMemcpyHtoDAsync(device, memory, bytes, stream)); });
    const double down = rate([&] { CUDA(cuMemcpyDtoHAsync(memory, device, bytes, stream)); });
    std::printf("copy;%s;%.1f;%.1f\n", memory == ours ? "cachalot" : "cuMemHostAlloc", up, down);
  }
  host.free(ours);
  CUDA(cuMemFreeHost(theirs));
  CUDA(cuMemFree(device));
}

static void pair() {
  constexpr int PAIRS = 1000000;
  Host host;
  for (const size_t bytes : {size_t{4096}, MIB, 32 * MIB}) {
    host.free(host.malloc(bytes));
    const Clock::time_point begin = Clock::now();
    for (int time = 0; time < PAIRS; ++time) {
      host.free(host.malloc(bytes));
    }
    std::printf("pair;cachalot;%zu;%.2f\n", bytes, since(begin) / PAIRS * 1e9);
  }
}

static void sleep_100_ms(void *) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }

static void behind(CUstream stream) {
  Host host;
  const auto measure = [&](bool busy) {
    host.free(host.malloc(64 * MIB));
    if (busy) {
      CUDA(cuLaunchHostFunc(stream, sleep_100_ms, nullptr));
    }
    const Clock::time_point begin = Clock::now();
    OURS(cachalot_empty_cache(host.allocator, 0));
    const double took = since(begin);
    CUDA(cuStreamSynchronize(stream));
    return took * 1e3;
  };
  const double idle = measure(false);
  std::printf("behind;cachalot;%.3f;%.3f\n", idle, measure(true));
}

// A program that obtains and frees blocks, and what it has asked for.
class Program {
  struct Block {
    void *memory;
    size_t bytes;
  };
  // The blocks of a batch or a sequence.
  struct Group {
    std::vector<Block> blocks;
    size_t bytes = 0;
  };
  using Sizes = std::vector<size_t>;

  Host host;
  CUstream stream;
  size_t room;
  CUdeviceptr device = 0;
  uint64_t random = 1;
  size_t asked = 0, most_asked = 0;
  uint64_t requests = 0;
  double seconds = 0, longest = 0;
  std::deque<Group> images, texts, audios, cache;
  size_t cached = 0;
  // The bytes that an allocator would hold that rounds up to a power of two, and reuses only blocks of the same size.
  std::map<size_t, int64_t> unused;
  size_t of_powers = 0;

  size_t from(size_t first, size_t last) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return first + (random >> 33) % (last - first + 1);
  }

  Group obtain(const Sizes &sizes, bool to_device) {
    Group group;
    for (const size_t bytes : sizes) {
      const Clock::time_point begin = Clock::now();
      void *const memory = host.malloc(bytes);
      const double took = since(begin);
      seconds += took;
      longest = std::max(longest, took);
      ++requests;
      int64_t &left = unused[std::bit_ceil(bytes)];
      if (left > 0) {
        --left;
      } else {
        of_powers += std::bit_ceil(bytes);
      }
      // The allocator sees the event of a copy, and not its length.
      const size_t some = std::min(bytes, size_t{4096});
      if (to_device) {
        CUDA(cuMemcpyHtoDAsync(device, memory, some, stream));
      } else {
        CUDA(cuMemcpyDtoHAsync(memory, device, some, stream));
      }
      host.used_by(memory, stream);
      group.blocks.push_back({memory, bytes});
      group.bytes += bytes;
      asked += bytes;
      most_asked = std::max(most_asked, asked);
    }
    return group;
  }

  void give_back(std::deque<Group> &groups) {
    for (const Block &block : groups.front().blocks) {
      ++unused[std::bit_ceil(block.bytes)];
      host.free(block.memory);
    }
    asked -= groups.front().bytes;
    groups.pop_front();
  }

  void load(std::deque<Group> &loader, size_t most, const Sizes &sizes) {
    if (loader.size() == most) {
      // A loader frees a batch when its copy is done.
      CUDA(cuStreamSynchronize(stream));
      give_back(loader);
    }
    loader.push_back(obtain(sizes, true));
  }

  void store(const Sizes &sizes) {
    size_t wanted = 0;
    for (const size_t bytes : sizes) {
      wanted += bytes;
    }
    while (cached + wanted > room && !cache.empty()) {
      cached -= cache.front().bytes;
      give_back(cache);
    }
    cache.push_back(obtain(sizes, false));
    cached += wanted;
  }

  void step(const std::string &name) {
    if (name == "images" || name == "mixed") {
      load(images, 9, {size_t{256} * 3 * 224 * 224 * 4, 256 * 8});
    }
    if (name == "text" || name == "mixed") {
      const size_t bytes = 64 * from(64, 2048) * 8;
      load(texts, 17, {bytes, bytes, bytes});
    }
    if (name == "audio") {
      load(audios, 17, {32 * from(80000, 320000) * 4, 32 * 8});
    }
    if (name == "chunks" || name == "mixed") {
      constexpr size_t token = 128 << 10;
      const size_t tokens = from(64, 4096);
      Sizes sizes(tokens / 256, 256 * token);
      if (tokens % 256 != 0) {
        sizes.push_back(tokens % 256 * token);
      }
      store(sizes);
    }
    if (name == "layers") {
      store(Sizes(32, (from(64, 4096) + 15) / 16 * 16 * 4096));
    }
  }

 public:
  Program(CUstream stream, size_t room) : stream(stream), room(room) { CUDA(cuMemAlloc(&device, 4096)); }

  void run(const std::string &name, int steps) {
    for (int number = 0; number < steps; ++number) {
      step(name);
    }
    const cachalot_statistics stats = host.statistics();
    const double pinned = static_cast<double>(stats.reserved_bytes.peak);
    const auto most = static_cast<double>(most_asked);
    std::printf("trace;%s;%.1f;%.4f;%.4f;%llu;%llu;%llu;%.3f;%.3f\n", name.c_str(), most / MIB, pinned / most,
                static_cast<double>(of_powers) / most, static_cast<unsigned long long>(requests),
                static_cast<unsigned long long>(stats.device_allocs),
                static_cast<unsigned long long>(stats.device_frees), seconds / static_cast<double>(requests) * 1e6,
                longest * 1e3);
    CUDA(cuStreamSynchronize(stream));
    for (std::deque<Group> *groups : {&images, &texts, &audios, &cache}) {
      while (!groups->empty()) {
        give_back(*groups);
      }
    }
    CUDA(cuMemFree(device));
  }
};

int main(int count, char **arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  const auto number = [&](int at) { return count > at ? std::strtoull(arguments[at], nullptr, 10) : 0; };
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUDA(cuInit(0));
  CUDA(cuDeviceGet(&device, 0));
  CUDA(cuDevicePrimaryCtxRetain(&context, device));
  CUDA(cuCtxSetCurrent(context));
  CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  if (what == "ready" && number(2) > 0) {
    ready(number(2) << 30);
  } else if (what == "copy" && number(2) > 0) {
    copy(number(2) * MIB, stream);
  } else if (what == "pair") {
    pair();
  } else if (what == "behind") {
    behind(stream);
  } else if (what == "trace" && number(3) > 0) {
    Program(stream, number(3) * MIB).run(arguments[2], 1000);
  } else {
    std::fprintf(stderr, "usage: pinned ready GIB | copy MIB | pair | behind | trace NAME MIB\n");
    return 2;
  }
  CUDA(cuStreamDestroy(stream));
  CUDA(cuDevicePrimaryCtxRelease(device));
}
