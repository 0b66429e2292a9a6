/*
 * The functions that CuPy's `CFunctionAllocator` calls, so that a request takes no function in Python:
 * python/cachalot_gpu/_cupy_native.py fills the structure.
 *
 *   c++ -std=c++17 -O2 -fPIC -shared -fvisibility=hidden -I include ffi/cupy/allocator.cpp -o libcachalot_cupy.so
 *   libcachalot.so
 *
 * CuPy calls both functions with the GIL, and expects no exception of them: a request that fails returns NULL, and
 * cachalot_cupy_failed has the reason. A request may wait for the device, so it gives the GIL up: a host function of
 * the stream may need it. A free never waits.
 */
#include "cachalot.h"

#include <atomic>
#include <cstdint>
#include <cstdio>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

constexpr int DEVICES = 64;

/* The memory of CuPy on a device, as requested. */
struct Held {
  std::atomic<int64_t> bytes;
  std::atomic<int64_t> peak_bytes;
  std::atomic<int64_t> blocks;
};

/* The state that the functions use, in the order of the structure in Python. */
struct Source {
  const cachalot_allocator* allocator;
  intptr_t (*current_stream)(); /* CuPy's, with the GIL. -1: perhaps an exception is set. */
  void* (*give_gil_up)();       /* PyEval_SaveThread */
  void (*take_gil)(void*);      /* PyEval_RestoreThread */
  void* (*exception)();         /* PyErr_Occurred */
  void (*clear)();              /* PyErr_Clear */
  Held held[DEVICES];
};

/* The status of the calling thread's last request that failed. */
thread_local cachalot_status failed = CACHALOT_OK;

/* Asks CuPy for the current stream. False if CuPy fails. An exception from before stays. */
bool ask(const Source* source, intptr_t* stream) {
  const bool was_set = source->exception() != nullptr;
  *stream = source->current_stream();
  if (*stream != -1 || was_set || source->exception() == nullptr) {
    return true;
  }
  source->clear();
  return false;
}

/* Notes a request, or a free by negative numbers. */
void note(Source* source, int device, int64_t bytes, int64_t blocks) {
  if (device < 0 || device >= DEVICES) {
    return;
  }
  Held& held = source->held[device];
  const int64_t now = held.bytes.fetch_add(bytes) + bytes;
  held.blocks.fetch_add(blocks);
  int64_t peak = held.peak_bytes.load();
  while (now > peak && !held.peak_bytes.compare_exchange_weak(peak, now)) {
  }
}

cachalot_stream handle_of(intptr_t stream) {
  return reinterpret_cast<cachalot_stream>(stream);
}

/* Tells the allocator of a stream that CuPy may destroy: PyTorch, of which it expects streams, destroys none. */
void tell(const Source* source, int device, intptr_t stream) {
  thread_local intptr_t told = 0;
  if (stream != told && cachalot_stream_unreported(source->allocator, device, handle_of(stream)) == CACHALOT_OK) {
    told = stream;
  }
}

}  // namespace

/* Allocates a block on the current stream. */
EXPORTED void* cachalot_cupy_malloc(void* param, size_t bytes, int device) {
  auto* source = static_cast<Source*>(param);
  intptr_t stream = 0;
  if (!ask(source, &stream)) {
    failed = CACHALOT_OK;
    return nullptr;
  }
  tell(source, device, stream);
  void* block = nullptr;
  void* thread = source->give_gil_up();
  const cachalot_status status = cachalot_malloc(source->allocator, device, bytes, handle_of(stream), &block);
  source->take_gil(thread);
  if (status != CACHALOT_OK) {
    failed = status;
    return nullptr;
  }
  if (block != nullptr) {
    note(source, device, static_cast<int64_t>(bytes), 1);
  }
  return block;
}

/* Frees a block after the work of its stream and of the current one. */
EXPORTED void cachalot_cupy_free(void* param, void* block, int) {
  auto* source = static_cast<Source*>(param);
  intptr_t stream = 0;
  const bool is_known = ask(source, &stream);
  cachalot_block freed = CACHALOT_BLOCK_INIT;
  cachalot_status status = cachalot_get_block(source->allocator, block, &freed);
  if (status == CACHALOT_OK && is_known) {
    tell(source, freed.device, stream);
    status = cachalot_record_stream(source->allocator, block, handle_of(stream));
  }
  if (status == CACHALOT_OK) {
    status = cachalot_free(source->allocator, block);
  }
  if (status == CACHALOT_OK) {
    note(source, freed.device, -static_cast<int64_t>(freed.requested_bytes), -1);
  } else if (status != CACHALOT_ERROR_FORKED) {
    /* A block of a forked child is the parent's. */
    std::fprintf(stderr, "cachalot: CuPy frees %p: %s\n", block, cachalot_last_error());
  }
}

/* The status of the calling thread's last request that failed; CACHALOT_OK if CuPy itself failed. */
EXPORTED cachalot_status cachalot_cupy_failed() {
  return failed;
}
