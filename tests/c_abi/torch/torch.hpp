/*
 * What PyTorch does with an allocator that is plugged in, without PyTorch: it finds functions in a library by their
 * names, keeps them as std::function of its own types, and calls them from there; and graphs are captured as
 * torch.cuda.CUDAGraph does. CUDA is the driver that CACHALOT_LIBCUDA names, which is the emulated one.
 */
#pragma once

#include <cachalot_torch.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <dlfcn.h>

using cudaStream_t = CUstream_st *;
using MempoolId_t = std::pair<unsigned long long, unsigned long long>;

inline int failures = 0;

#define CHECK(condition)                                                                                           \
  do {                                                                                                             \
    if (!(condition)) {                                                                                            \
      std::fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, cachalot_last_error()); \
      ++failures;                                                                                                  \
    }                                                                                                              \
  } while (0)

/* Ends the program if what it stands on does not work. */
#define NEEDED(call)                                                                                          \
  do {                                                                                                        \
    if ((call) != 0) {                                                                                        \
      std::fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #call, cachalot_last_error()); \
      std::exit(2);                                                                                           \
    }                                                                                                         \
  } while (0)

/* A function of a loaded library. */
template <typename Function>
Function *function(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (found == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(2);
  }
  return reinterpret_cast<Function *>(found);
}

/* The driver, as far as PyTorch's runtime would call it for these programs. */
struct Driver {
  void *library = load();
  int (*device_get)(int *, int) = function<int(int *, int)>(library, "cuDeviceGet");
  int (*retain)(void **, int) = function<int(void **, int)>(library, "cuDevicePrimaryCtxRetain");
  int (*release)(int) = function<int(int)>(library, "cuDevicePrimaryCtxRelease_v2");
  int (*set_current)(void *) = function<int(void *)>(library, "cuCtxSetCurrent");
  int (*stream_create)(cudaStream_t *, unsigned) = function<int(cudaStream_t *, unsigned)>(library, "cuStreamCreate");
  int (*stream_destroy)(cudaStream_t) = function<int(cudaStream_t)>(library, "cuStreamDestroy_v2");
  int (*synchronize)(cudaStream_t) = function<int(cudaStream_t)>(library, "cuStreamSynchronize");
  int (*begin_capture)(cudaStream_t, int) = function<int(cudaStream_t, int)>(library, "cuStreamBeginCapture_v2");
  int (*end_capture)(cudaStream_t, void **) = function<int(cudaStream_t, void **)>(library, "cuStreamEndCapture");
  int (*graph_destroy)(void *) = function<int(void *)>(library, "cuGraphDestroy");
  int (*capture_info)(cudaStream_t, int *, uint64_t *, void *, void *, void *) =
      function<int(cudaStream_t, int *, uint64_t *, void *, void *, void *)>(library, "cuStreamGetCaptureInfo_v2");
  int (*fill)(uint64_t, unsigned char, size_t,
              cudaStream_t) = function<int(uint64_t, unsigned char, size_t, cudaStream_t)>(library, "cuMemsetD8Async");
  uint64_t (*calls)(const char *) = function<uint64_t(const char *)>(library, "emu_calls");
  int (*hold)(uint64_t) = function<int(uint64_t)>(library, "emu_hold_stream");
  int (*let_on)(uint64_t) = function<int(uint64_t)>(library, "emu_release_stream");

  static void *load() {
    const char *path = std::getenv("CACHALOT_LIBCUDA");
    void *library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW);
    if (library == nullptr) {
      std::fprintf(stderr, "CACHALOT_LIBCUDA names no emulated driver\n");
      std::exit(2);
    }
    NEEDED(function<int(unsigned)>(library, "cuInit")(0));
    return library;
  }

  /* What cudaSetDevice and the first call after it do. */
  void use(int number) const {
    int device = 0;
    void *context = nullptr;
    NEEDED(device_get(&device, number));
    NEEDED(retain(&context, device));
    NEEDED(set_current(context));
  }

  /* A stream as PyTorch makes them: not ordered with the legacy default stream. */
  cudaStream_t stream() const {
    cudaStream_t made = nullptr;
    NEEDED(stream_create(&made, 1));
    return made;
  }

  /* Work on a stream that uses a block. */
  void use_block(void *block, size_t bytes, cudaStream_t stream) const {
    NEEDED(fill(reinterpret_cast<uint64_t>(block), 7, bytes, stream));
  }

  void hold_back(cudaStream_t stream) const { NEEDED(hold(reinterpret_cast<uint64_t>(stream))); }
  void let_go_on(cudaStream_t stream) const { NEEDED(let_on(reinterpret_cast<uint64_t>(stream))); }
};

/* torch.cuda.memory.CUDAPluggableAllocator, with every hook. */
class Pluggable {
  struct Metadata {
    size_t bytes;
    int device;
    cudaStream_t stream;
  };
  void *library;
  std::function<void *(size_t, int, cudaStream_t)> alloc_fn;
  std::function<void(void *, size_t, int, cudaStream_t)> free_fn;
  std::mutex mutex;
  std::map<void *, Metadata> metadata;

 public:
  std::function<void(int)> init;
  std::function<void()> empty_cache;
  std::function<void(double, int)> set_memory_fraction;
  std::function<void *(void *, size_t *)> base_allocation;
  std::function<void(void *, cudaStream_t)> record_stream;
  std::function<void(int, MempoolId_t, std::function<bool(cudaStream_t)>)> begin_allocate_to_pool;
  std::function<void(int, MempoolId_t)> end_allocate_to_pool;
  std::function<void(int, MempoolId_t)> release_pool;

  explicit Pluggable(const char *path, const char *alloc = "cachalot_torch_alloc") : library(dlopen(path, RTLD_NOW)) {
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::exit(2);
    }
    alloc_fn = function<void *(size_t, int, cudaStream_t)>(library, alloc);
    free_fn = function<void(void *, size_t, int, cudaStream_t)>(library, "cachalot_torch_free");
    init = function<void(int)>(library, "cachalot_torch_init");
    empty_cache = function<void()>(library, "cachalot_torch_reset");
    set_memory_fraction = function<void(double, int)>(library, "cachalot_torch_memory_fraction");
    base_allocation = function<void *(void *, size_t *)>(library, "cachalot_torch_base_alloc");
    record_stream = function<void(void *, cudaStream_t)>(library, "cachalot_torch_record_stream");
    begin_allocate_to_pool =
        function<void(int, MempoolId_t, std::function<bool(cudaStream_t)>)>(library, "cachalot_torch_begin_pool");
    end_allocate_to_pool = function<void(int, MempoolId_t)>(library, "cachalot_torch_end_allocate_to_pool");
    release_pool = function<void(int, MempoolId_t)>(library, "cachalot_torch_release_pool");
  }

  void *allocate(size_t bytes, int device, cudaStream_t stream) {
    void *block = alloc_fn(bytes, device, stream);
    const std::lock_guard<std::mutex> lock(mutex);
    metadata[block] = {bytes, device, stream};
    return block;
  }

  void free(void *block) {
    Metadata of{};
    {
      const std::lock_guard<std::mutex> lock(mutex);
      of = metadata[block];
      metadata.erase(block);
    }
    free_fn(block, of.bytes, of.device, of.stream);
  }
};

/* The statistics of the allocator behind the plug-in. */
inline int64_t stat(const char *key, int device = 0) {
  cachalot_allocator *allocator = nullptr;
  int64_t value = -1;
  NEEDED(cachalot_torch_allocator(&allocator));
  NEEDED(cachalot_find_statistic(allocator, device, key, &value));
  return value;
}

/* torch.cuda.CUDAGraph. */
class Graph {
  const Driver &driver;
  Pluggable &allocator;
  int device;
  MempoolId_t pool;
  cudaStream_t stream = nullptr;
  uint64_t capture_id = ~uint64_t{0};
  void *graph = nullptr;

 public:
  Graph(const Driver &driver, Pluggable &allocator, int device, MempoolId_t pool)
      : driver(driver), allocator(allocator), device(device), pool(pool) {}

  /* The pool comes first: what the beginning of the capture may allocate is led there too. */
  void begin(cudaStream_t on, int mode = 0) {
    stream = on;
    allocator.begin_allocate_to_pool(device, pool, [this](cudaStream_t asked) {
      int status = 0;
      uint64_t id = 0;
      NEEDED(driver.capture_info(asked, &status, &id, nullptr, nullptr, nullptr));
      return status == 1 && id == capture_id;
    });
    int status = 0;
    NEEDED(driver.begin_capture(stream, mode));
    NEEDED(driver.capture_info(stream, &status, &capture_id, nullptr, nullptr, nullptr));
    CHECK(status == 1);
  }

  void end() {
    NEEDED(driver.end_capture(stream, &graph));
    CHECK(graph != nullptr);
    allocator.end_allocate_to_pool(device, pool);
  }

  void reset() {
    NEEDED(driver.graph_destroy(graph));
    allocator.release_pool(device, pool);
  }
};
