/*
 * cachalot_torch.h: cachalot as PyTorch's allocator of CUDA memory. What is said in cachalot.h holds here too.
 *
 *   names = "cachalot_torch_alloc", "cachalot_torch_free"
 *   cachalot = torch.cuda.memory.CUDAPluggableAllocator("libcachalot_torch.so", *names)
 *   torch.cuda.memory.change_current_allocator(cachalot)        # before anything else uses the GPU
 *
 * The functions below are in libcachalot.so, but for those under "The shim", which take a C++ compiler: PyTorch takes
 * an allocator at its word when that returns NULL, so that out of memory has to arrive as an exception.
 *
 * The allocator
 *   - There is one for the process, over every device of the driver (those that CUDA_VISIBLE_DEVICES leaves), with
 *     PyTorch's numbers and in their primary contexts. It is made when it is first needed, and stays until the process
 *     ends; each device is opened when it is first allocated from.
 *   - cachalot_torch_allocator answers its handle, for statistics, limits, snapshots and everything else in cachalot.h
 *     but cachalot_destroy: destroyed, it fails every later request. Pools named {0, n} are PyTorch's.
 *
 * Settings
 *   - Those of cachalot_torch_configure; if it was not called those of the environment variable CACHALOT_CONF; without
 *     that what PYTORCH_ALLOC_CONF, or else PYTORCH_CUDA_ALLOC_CONF, says of device memory. `backend`, `pinned_...` and
 *     unknown keys of those two are PyTorch's affair. What else is wrong in them is an error, as is what is wrong in
 *     CACHALOT_CONF.
 *   - With wrong settings no allocator is made: a line on the standard error says why, once, and every request fails
 *     with CACHALOT_ERROR_INVALID_CONFIG until cachalot_torch_configure gives right ones.
 *
 * Failures
 *   - PyTorch's hooks answer nothing. What goes wrong in one is told on the standard error, each kind once. In a forked
 *     child, and when the driver is gone at exit, hooks do nothing, silently; requests fail.
 *
 * Threads: every function may be called from any thread.
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

/* Obtains a block, as cachalot_malloc. NULL for 0 bytes, and if there is none: cachalot_last_error says why. For
 * torch.cuda.MemPool, where PyTorch deals with NULL: it gives back what it has cached, tries again and raises its own
 * error. For the current allocator give PyTorch the shim's cachalot_torch_alloc.
 * Driver: if no cached block fits, or frees are pending, and for the first request of a device, which may make its
 * context. */
CACHALOT_API void *cachalot_torch_malloc(size_t bytes, int device, cachalot_stream stream);

/* The same with a status; `out` is written if it is OK.
 * Errors: those of cachalot_malloc, and of cachalot_create if this is the first call. */
CACHALOT_CHECKED cachalot_status cachalot_torch_allocate(size_t bytes, int device, cachalot_stream stream, void **out);

/* Gives a block back, as cachalot_free. The block alone counts: size, device and stream are not looked at.
 * Driver: as cachalot_free. */
CACHALOT_API void cachalot_torch_free(void *block, size_t bytes, int device, cachalot_stream stream);

/* ---- Hooks ---- */

/* For set_init_fn. Makes the allocator, so that wrong settings are told at once; opens no device. 0 devices, as PyTorch
 * says before it has counted them: nothing.
 * Driver: loads and starts it. */
CACHALOT_API void cachalot_torch_init(int device_count);

/* For set_reset_fn, which torch.cuda.empty_cache calls: cachalot_empty_cache on every device.
 * Driver: yes, where anything is cached, and it waits for the streams. */
CACHALOT_API void cachalot_torch_reset(void);

/* For set_memory_fraction_fn: cachalot_set_memory_fraction.
 * Driver: asks how much that is; makes no context. */
CACHALOT_API void cachalot_torch_memory_fraction(double fraction, int device);

/* For set_base_alloc_fn: the address and the length of the segment that a block, or an address in it, is part of. Of
 * other addresses the same one is answered, and `bytes` is left alone, as without the hook. */
CACHALOT_API void *cachalot_torch_base_alloc(void *block, size_t *bytes);

/* For set_record_stream_fn: cachalot_record_stream. Nothing for memory of others, which PyTorch passes on as well.
 * Driver: as cachalot_record_stream. */
CACHALOT_API void cachalot_torch_record_stream(void *block, cachalot_stream stream);

/* ---- Pools and graphs ---- */

/* Whether a request on `stream` is led (not 0). Called on the thread that makes the request, with no lock held. It may
 * call CUDA, and must not call the allocator. */
typedef int (*cachalot_torch_filter)(void *userdata, cachalot_stream stream);

/* The filter with this `userdata` is not called any more. */
typedef void (*cachalot_torch_let_go)(void *userdata);

/* Leads the requests on `device` that the filter names into a pool from here on, before any route in force already;
 * NULL names all. The pool is made if there is none; it gains a user, until cachalot_torch_release_pool. PyTorch begins
 * captures of graphs and mere detours (torch.cuda.use_mem_pool) alike, and a capture before its stream captures: so
 * this counts as a capture, during which blocks that other streams use are kept, until a request is led that no graph
 * captures. `let_go`, if it is not NULL, is called once: when the route has ended and nobody is in the filter, or when
 * this fails.
 * Errors: INVALID_ARGUMENT (the default pool), TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_torch_begin_allocate_to_pool(int device, cachalot_pool pool,
                                                                   cachalot_torch_filter filter,
                                                                   cachalot_torch_let_go let_go, void *userdata);

/* For set_end_allocate_to_pool_fn: ends the latest such route into the pool. Its user stays. */
CACHALOT_API void cachalot_torch_end_allocate_to_pool(int device, cachalot_pool pool);

/* For set_release_pool, which PyTorch calls when a graph is destroyed: cachalot_pool_release. */
CACHALOT_API void cachalot_torch_release_pool(int device, cachalot_pool pool);

/* ---- The program's side ---- */

/* Before there is an allocator: it is made with these settings and not with the environment's; NULL: with the
 * environment's again. Afterwards: cachalot_configure.
 * Errors: INVALID_CONFIG, which changes nothing. */
CACHALOT_API cachalot_status cachalot_torch_configure(const char *config);

/* Writes the handle of the allocator, which is made if there is none yet.
 * Driver: loads and starts it, if there is none yet.
 * Errors: those of cachalot_create. */
CACHALOT_API cachalot_status cachalot_torch_allocator(cachalot_allocator **out);

/* The same, but NULL if there is no allocator yet. */
CACHALOT_API cachalot_status cachalot_torch_peek(cachalot_allocator **out);

/* Describes the stacks of recorded events by the Python frames of the thread (not 0), or no longer; it takes the place
 * of cachalot_on_stack. Threads of Python's take its lock for that, as PyTorch's own allocator does; others have no
 * frames. Costs some 0.2 us a frame, and nothing when off.
 * Errors: UNSUPPORTED without CPython 3.9 or later in the process. */
CACHALOT_API cachalot_status cachalot_torch_record_stacks(int on);

#ifdef __cplusplus
}
#endif

#ifdef __cplusplus
#include <functional>
#include <utility>

/* ---- The shim ---- */

/* In libcachalot_torch.so, which is made of ffi/torch/shim.cpp: by any C++17 compiler; with -DCACHALOT_WITH_TORCH and
 * PyTorch's own headers for PyTorch's own exceptions. */
extern "C" {

/* As cachalot_torch_malloc, but never NULL for more than 0 bytes: it throws, with the text of cachalot_last_error.
 * Built with PyTorch's headers c10::OutOfMemoryError (in Python torch.OutOfMemoryError) for OUT_OF_MEMORY, REJECTED and
 * TOO_LARGE, and c10::Error (RuntimeError) for all else; without them std::runtime_error (RuntimeError). What a filter
 * throws is thrown on: without those headers as a std::runtime_error with the text. */
CACHALOT_API void *cachalot_torch_alloc(size_t bytes, int device, cachalot_stream stream);

/* For set_begin_allocate_to_pool: cachalot_torch_begin_allocate_to_pool. Throws likewise. */
CACHALOT_API void cachalot_torch_begin_pool(int device, std::pair<unsigned long long, unsigned long long> pool,
                                            std::function<bool(cachalot_stream)> filter);
}
#endif

#endif
