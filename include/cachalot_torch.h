/**
 * @file cachalot_torch.h
 * cachalot as PyTorch's allocator of CUDA memory. The rules of cachalot.h apply here, too.
 *
 * In Python, before any other use of the GPU:
 *
 * @code{.py}
 * names = "cachalot_torch_alloc", "cachalot_torch_free"
 * cachalot = torch.cuda.memory.CUDAPluggableAllocator("libcachalot_torch.so", *names)
 * torch.cuda.memory.change_current_allocator(cachalot)
 * @endcode
 *
 * The functions are in libcachalot.so, except the functions under "The shim". The shim needs a C++ compiler: PyTorch
 * takes a NULL of an allocator as an address, so a request that finds no memory must throw an exception.
 *
 * The allocator
 *   - A process has one allocator for PyTorch, over every device of the driver (as CUDA_VISIBLE_DEVICES allows), with
 *     PyTorch's numbers and in the primary contexts. The first use makes the allocator, which lasts until the end of
 *     the process. The first request on a device opens the device.
 *   - cachalot_torch_allocator returns the handle, for statistics, limits, snapshots and every other function of
 *     cachalot.h except cachalot_destroy: after cachalot_destroy, every request fails. PyTorch's pools are named {0,
 *     n}.
 *
 * Settings
 *   - The settings come from the first of: cachalot_torch_configure, the environment variable CACHALOT_CONF,
 *     PYTORCH_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF. In PyTorch's two variables, the keys `backend` and `pinned_...` and
 *     unknown keys are ignored, because they concern PyTorch. Any other mistake in a variable is an error.
 *   - With wrong settings there is no allocator: a line on the standard error stream says why, once, and every request
 *     fails with CACHALOT_ERROR_INVALID_CONFIG until cachalot_torch_configure corrects the settings.
 *   - For a setting without effect, a line on the standard error stream names the key and the reason, once, unless
 *     cachalot_torch_notes has given the text to the program.
 *
 * The flight recorder
 *   - The recorder of cachalot_recorder_start is on from the start, with the options of the environment variable
 *     CACHALOT_RECORDER: CACHALOT_RECORDER=0 switches it off, and `stacks:True` adds the Python frames of
 *     cachalot_torch_record_stacks, which cost microseconds an event.
 *
 * Failures
 *   - PyTorch's hooks return no status. A failure of a hook is a line on the standard error stream, once for each kind
 *     of failure. In a forked child, and after the driver has shut down, hooks do nothing and print nothing; requests
 *     fail.
 *
 * Threads
 *   - Any thread may call any function.
 *
 * Since 0.1.
 */
#ifndef CACHALOT_TORCH_H
#define CACHALOT_TORCH_H

#include "cachalot.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Memory ---- */

/** Allocates a block like cachalot_malloc, and returns the address; NULL for 0 bytes and after a failure, which
 * cachalot_last_error describes. The function is for torch.cuda.MemPool: after a NULL, PyTorch releases cached memory,
 * tries again, and raises its own error. The current allocator needs the shim's cachalot_torch_alloc instead.
 *   - Driver: if no cached block fits, or frees are pending; the first request on a device may make the context. */
CACHALOT_API void *cachalot_torch_malloc(size_t bytes, int device, cachalot_stream stream);

/** Allocates a block like cachalot_malloc, and writes the address to `out`.
 *   - Driver: as cachalot_torch_malloc.
 *   - Errors: those of cachalot_malloc, and for the first call those of cachalot_create. */
CACHALOT_CHECKED cachalot_status cachalot_torch_allocate(size_t bytes, int device, cachalot_stream stream, void **out);

/** Frees a block like cachalot_free. The address decides; size, device and stream are ignored.
 *   - Driver: as cachalot_free. */
CACHALOT_API void cachalot_torch_free(void *block, size_t bytes, int device, cachalot_stream stream);

/* ---- Hooks ---- */

/** The hook for set_init_fn: makes the allocator, so that wrong settings show at once. Opens no device. For 0 devices,
 * PyTorch's value before it has counted the devices, the hook does nothing.
 *   - Driver: loads and starts the driver. */
CACHALOT_API void cachalot_torch_init(int device_count);

/** The hook for set_reset_fn, which torch.cuda.empty_cache calls: runs cachalot_empty_cache on every device.
 *   - Driver: yes, on devices with cached memory, and waits for the streams. */
CACHALOT_API void cachalot_torch_reset(void);

/** The hook for set_memory_fraction_fn: runs cachalot_set_memory_fraction.
 *   - Driver: reads the size of the memory; makes no context. */
CACHALOT_API void cachalot_torch_memory_fraction(double fraction, int device);

/** The hook for set_base_alloc_fn: returns the address of the segment around an address in a block, and writes the
 * length to `bytes`. For other addresses, returns the address and leaves `bytes` unchanged, like PyTorch without the
 * hook. */
CACHALOT_API void *cachalot_torch_base_alloc(void *block, size_t *bytes);

/** The hook for set_record_stream_fn: runs cachalot_record_stream. For memory of other allocators, which PyTorch passes
 * as well, the hook does nothing.
 *   - Driver: as cachalot_record_stream. */
CACHALOT_API void cachalot_torch_record_stream(void *block, cachalot_stream stream);

/* ---- Pools and graphs ---- */

/** Decides whether a route takes a request on `stream` (not 0). The filter runs on the thread of the request, without a
 * lock. It may call CUDA, and must not call the allocator. */
typedef int (*cachalot_torch_filter)(void *userdata, cachalot_stream stream);

/** Reports to the program that the filter with this `userdata` will not run any more. */
typedef void (*cachalot_torch_let_go)(void *userdata);

/** Starts a route to a pool for the requests on `device` that the filter takes; NULL takes all. The newest route that
 * takes a request decides. If there is no such pool, the call makes the pool. The call adds a user to the pool, until
 * cachalot_torch_release_pool.
 *
 * PyTorch uses the same hook for captures of graphs and for torch.cuda.use_mem_pool, and calls the hook before the
 * capture of the stream starts. So the route counts as a capture, and blocks that other streams use stay pending, until
 * the route takes a request that no graph captures. `let_go`, unless NULL, is called once: after the end of the route,
 * when no thread runs the filter, or after a failure of this call.
 *   - Errors: INVALID_ARGUMENT (the default pool), TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_torch_begin_allocate_to_pool(int device, cachalot_pool pool,
                                                                   cachalot_torch_filter filter,
                                                                   cachalot_torch_let_go let_go, void *userdata);

/** The hook for set_end_allocate_to_pool_fn: ends the newest route to the pool. The user of the route stays. */
CACHALOT_API void cachalot_torch_end_allocate_to_pool(int device, cachalot_pool pool);

/** The hook for set_release_pool, which PyTorch calls at the destruction of a graph: runs cachalot_pool_release. */
CACHALOT_API void cachalot_torch_release_pool(int device, cachalot_pool pool);

/** Supplies a segment of `bytes` bytes on `device`, which starts at a multiple of 512. Returns NULL without memory. May
 * call CUDA, and must not call the allocator. */
typedef void *(*cachalot_torch_supply)(void *userdata, size_t bytes, int device);

/** Takes back a segment that cachalot_torch_supply has supplied. The same rules apply. */
typedef void (*cachalot_torch_take_back)(void *userdata, void *segment, size_t bytes, int device);

/** Lets the program supply the segments of a pool from now on: a torch.cuda.MemPool with its own allocator. The
 * allocator places blocks in them, and counts them as its own memory. The pool has no expandable segments, and under
 * policy:stitched no pages: blocks are placed as under policy:caching. Memory that the pool already has stays.
 * `let_go`, unless NULL, is called once after a success: when the pool has no users and no supplied segment is left.
 *   - Errors: UNKNOWN_POOL, NULL. */
CACHALOT_API cachalot_status cachalot_torch_supply_pool(int device, cachalot_pool pool, cachalot_torch_supply supply,
                                                        cachalot_torch_take_back take_back,
                                                        cachalot_torch_let_go let_go, void *userdata);

/** Changes the flags of a pool, CACHALOT_POOL_USE_ON_OOM and CACHALOT_POOL_NO_SPLIT, for later requests.
 *   - Errors: UNKNOWN_POOL, INVALID_ARGUMENT. */
CACHALOT_API cachalot_status cachalot_torch_set_pool_flags(int device, cachalot_pool pool, uint32_t flags);

/** Allocates the block of `bytes` bytes at `address`, for a request of `requested_bytes`, from free memory of a pool.
 * With this, a program returns a pool to an earlier state: it frees the blocks of the pool, and allocates the earlier
 * blocks where they were. The block belongs to the stream of that memory. The memory before and after it stays free.
 *   - Errors: INVALID_POINTER (no memory of the allocator), INVALID_ARGUMENT (not free, another pool, no multiple of
 *     512, or a policy without a fixed place for blocks), TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_torch_allocate_at(cachalot_pool pool, void *address, size_t bytes,
                                                        size_t requested_bytes);

/* ---- Inspection ---- */

/** An event of the allocator, at the moment when it happens. */
typedef struct cachalot_torch_event {
  size_t struct_size;     /**< The size in the library's version. */
  uint64_t address;       /**< The address; of CACHALOT_ACTION_OOM, the device's free bytes. */
  uint64_t bytes;         /**< The length. */
  uint64_t stream_id;     /**< The library's number of the stream; the low 48 bits are the handle. */
  cachalot_pool pool;     /**< The pool of the block or segment. */
  cachalot_action action; /**< The kind of the event. */
  int device;             /**< The device. */
} cachalot_torch_event;

/** Receives an event, which is valid until the callback returns. The callback runs on the thread of the call that
 * causes the event, under a lock of the library: it must neither call the library nor wait for another thread that
 * does. */
typedef void (*cachalot_torch_event_callback)(void *userdata, const cachalot_torch_event *event);

/** Sets the callback that receives each event of every device; NULL removes the callback, which does not run after this
 * call. Must not be called in a callback. While a callback is set, a request takes about 0.1 us longer. */
CACHALOT_API cachalot_status cachalot_torch_on_event(cachalot_torch_event_callback callback, void *userdata);

/** A block of a segment. */
typedef struct cachalot_torch_block {
  void *base;             /**< The first byte. */
  size_t bytes;           /**< The length. */
  size_t requested_bytes; /**< The bytes of the latest request that the block served; 0: none. */
  int allocated;          /**< 1: the program uses the block; otherwise 0. */
  int active;             /**< 1: the program or another stream uses the block; 0: the block is free. */
} cachalot_torch_block;

/** A segment, or a mapped part of an expandable segment. */
typedef struct cachalot_torch_segment {
  size_t struct_size;                 /**< The size in the library's version. */
  void *base;                         /**< The first byte. */
  size_t bytes;                       /**< The length. */
  uint64_t stream_id;                 /**< The library's number of the stream; the low 48 bits are the handle. */
  cachalot_pool pool;                 /**< The pool. */
  const cachalot_torch_block *blocks; /**< The blocks by address, which cover the segment. */
  size_t block_count;                 /**< The number of blocks. */
  int device;                         /**< The device. */
  int large;                          /**< 1: blocks of more than 1 MiB; 0: smaller blocks. */
  int expandable;                     /**< 1: a part of an expandable segment; otherwise 0. */
  uint32_t number;                    /**< In the order in which the process obtained segments or their first page. */
} cachalot_torch_segment;

/** Receives a segment, which is valid until the callback returns. Returns 0 to continue. */
typedef int (*cachalot_torch_segment_visitor)(void *userdata, const cachalot_torch_segment *segment);

/** Calls `visit` with every segment of every device, by address. Heaps are read one after another, so an exact picture
 * needs a program at rest.
 *   - Errors: STOPPED. */
CACHALOT_API cachalot_status cachalot_torch_segments(cachalot_torch_segment_visitor visit, void *userdata);

/** Receives the reserved bytes of a private pool: in segments of small blocks, and of large blocks. Returns 0 to
 * continue. */
typedef int (*cachalot_torch_pool_visitor)(void *userdata, cachalot_pool pool, uint64_t small_bytes,
                                           uint64_t large_bytes);

/** Calls `visit` once with every private pool of a device that has been used and is not gone. Takes time for each stream
 * of each pool, and none for blocks and segments. Does not call the driver.
 *   - Errors: UNKNOWN_DEVICE, STOPPED. */
CACHALOT_API cachalot_status cachalot_torch_pools(int device, cachalot_torch_pool_visitor visit, void *userdata);

/* ---- The program ---- */

/** Sets the settings. Before the first use of the allocator, `config` replaces the settings of the environment, and
 * NULL restores the settings of the environment. Later, the call runs cachalot_configure.
 *   - Errors: INVALID_CONFIG, which changes nothing. */
CACHALOT_API cachalot_status cachalot_torch_configure(const char *config);

/** Calls `write` with a text for each setting that has no effect: of `config`, or with NULL of the settings with which
 * the allocator is made. The library does not repeat these texts on the standard error.
 *   - Errors: INVALID_CONFIG, STOPPED. */
CACHALOT_API cachalot_status cachalot_torch_notes(const char *config, cachalot_writer write, void *userdata);

/** Writes the handle of the allocator to `out`. The first call makes the allocator.
 *   - Driver: the first call loads and starts the driver.
 *   - Errors: those of cachalot_create. */
CACHALOT_API cachalot_status cachalot_torch_allocator(cachalot_allocator **out);

/** Writes the handle of the allocator to `out`, or NULL if there is no allocator yet. */
CACHALOT_API cachalot_status cachalot_torch_peek(cachalot_allocator **out);

/** Turns call stacks of recorded events on (not 0) or off. A stack has the Python frames of the thread. The function
 * replaces the callback of cachalot_on_stack. Threads of Python take Python's lock for each stack, as in PyTorch's own
 * allocator; other threads have no frames. A frame costs about 0.2 us. Turned off, stacks cost nothing.
 *   - Errors: UNSUPPORTED without CPython 3.9 or later in the process. */
CACHALOT_API cachalot_status cachalot_torch_record_stacks(int on);

#ifdef __cplusplus
}
#endif

#ifdef __cplusplus
#include <functional>
#include <utility>

/* ---- The shim ---- */

/* The shim is libcachalot_torch.so, compiled from ffi/torch/shim.cpp by any C++17 compiler. With -DCACHALOT_WITH_TORCH
 * and PyTorch's headers, the shim throws PyTorch's exceptions. */
extern "C" {

/** Allocates a block like cachalot_torch_malloc, and throws an exception with the text of cachalot_last_error after a
 * failure. With PyTorch's headers, the exception is c10::OutOfMemoryError (torch.OutOfMemoryError in Python) for
 * OUT_OF_MEMORY, REJECTED and TOO_LARGE, and c10::Error (RuntimeError) for other failures. Without PyTorch's headers,
 * the exception is std::runtime_error (RuntimeError). An exception of a filter passes through; without PyTorch's headers
 * it becomes a std::runtime_error with the same text. */
CACHALOT_API void *cachalot_torch_alloc(size_t bytes, int device, cachalot_stream stream);

/** The hook for set_begin_allocate_to_pool: runs cachalot_torch_begin_allocate_to_pool. Throws like
 * cachalot_torch_alloc. */
CACHALOT_API void cachalot_torch_begin_pool(int device, std::pair<unsigned long long, unsigned long long> pool,
                                            std::function<bool(cachalot_stream)> filter);
}
#endif

#endif
