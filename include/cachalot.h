/**
 * @file cachalot.h
 * The C interface of cachalot, a GPU memory allocator. What the comments of the headers say is the
 * contract. C++ programs use cachalot.hpp.
 *
 * @code
 * cachalot_options options = CACHALOT_OPTIONS_INIT;
 * cachalot_allocator *allocator = NULL;
 * void *block = NULL;
 * if (cachalot_create(&options, &allocator) != CACHALOT_OK ||
 *     cachalot_malloc(allocator, 0, 1 << 20, stream, &block) != CACHALOT_OK) {
 *   fprintf(stderr, "%s\n", cachalot_last_error());
 *   return 1;
 * }
 * // Launch kernels that use the block on `stream`.
 * cachalot_free(allocator, block);
 * cachalot_destroy(allocator);
 * @endcode
 *
 * This page has what most programs need. It includes the other headers, one for each topic:
 *   - cachalot/status.h: the numbers of all errors
 *   - cachalot/streams.h: several streams for one block, streams that end, frees when numbered work
 *     is done
 *   - cachalot/blocks.h: the block of an address, physical pages, pinned blocks, other processes
 *   - cachalot/cache.h: the release of cached memory, limits, upkeep, callbacks when memory is short
 *   - cachalot/devices.h: devices and their health, pinned memory of the host, the end of a process
 *   - cachalot/pools.h: private pools, and the capture of graphs
 *   - cachalot/tags.h: pools by name, with limits for the parts of a program
 *   - cachalot/parking.h: memory that the program does not need for a while
 *   - cachalot/ranges.h: tables and caches that grow in place
 *   - cachalot/plan.h: plans of repeated iterations, settings that adjust themselves, predictions
 *   - cachalot/settings.h: the list of all settings
 *   - cachalot/diagnose.h: statistics by name, traces, snapshots, metrics, errors of kernels
 *   - cachalot/simulated.h: devices without a GPU, for tests
 *
 * Platforms: Linux on x86-64 with glibc, and NVIDIA GPUs with a driver for CUDA 11.4 or later.
 * C11 or C17 with GCC or Clang; C++17 or later, nvcc included.
 *
 * Ownership. The program owns an allocator from cachalot_create to cachalot_destroy. The handle is
 * a number in the shape of a pointer: compare and copy it, but never dereference it. Every function
 * checks the handle. A destroyed or foreign handle is an error, and never a crash. The program owns
 * a block from cachalot_malloc to cachalot_free. The address is in device memory, and the host must
 * not dereference it, except with CACHALOT_HOST. Addresses are unique among the allocators of a
 * process. A function reads its texts and structures only during the call. Returned texts belong to
 * the library, and the function says how long a text is valid. Allocators share nothing, and no
 * setting applies to the whole process.
 *
 * Structures. Set the first field, `struct_size`, to sizeof, as the _INIT macros do. Programs then
 * work with an older or newer library. If the program's structure is shorter than the library's,
 * missing fields count as 0. If the structure is longer, extra fields must be 0 where the library
 * reads, and stay unchanged where it writes.
 *
 * Threads. Any thread may call any function. A function with a `const cachalot_allocator *` may run
 * at the same time as any other function. cachalot_destroy must not run at the same time as another
 * call of the same allocator. Requests on different streams share no lock. During a driver call or
 * a callback, the library holds no lock that a cached request of another stream needs. A callback
 * runs on the thread of the call that caused it, and may call every function of the allocator
 * except cachalot_destroy, which returns CACHALOT_ERROR_BUSY. A callback must return: no C++
 * exception and no longjmp may leave it. Requests made in a callback cause no other callbacks,
 * except those of cachalot_on_map and cachalot_on_unmap. Signal handlers must not call the library,
 * and threads must not be cancelled inside it.
 *
 * Errors. A function that can fail returns a cachalot_status: CACHALOT_OK, which is 0, or a
 * CACHALOT_ERROR_ number of cachalot/status.h. cachalot_last_error describes the last failure of
 * the calling thread. A failed call writes nothing to the program's variables, and changes no state
 * of the allocator. Only cached segments may have been returned to the driver. The library finds
 * the program's mistakes (100 to 199) before any change, and without a driver call. A double free
 * is found until the address is allocated again.
 *
 * Streams. A request names a stream, and the block can be used on this stream immediately. Free a
 * block as soon as the last use on the stream has been submitted, without waiting for the device.
 * The next block at this address goes to the same stream, after the last use. Announce work on
 * another stream with cachalot_record_stream, after the submission of the work and before the free.
 * The freed block then stays pending until the work is done. Order reads and writes between streams
 * with events, as for memory of cudaMalloc. Call cachalot_stream_destroyed before
 * cudaStreamDestroy: cachalot/streams.h says why, and what else works.
 *
 * Capture. Every function may be called while a stream captures a graph, in every capture mode. No
 * function becomes a part of the graph. A graph's memory must remain unused by others while the
 * graph can be launched: cachalot/pools.h says how.
 *
 * Fork. CUDA does not survive a fork. In a child of the process with the first allocator,
 * cachalot_create and every function with an allocator return CACHALOT_ERROR_FORKED, take no lock
 * and call no driver. The parent is not affected. A child that calls exec, or never calls the
 * library, works as usual.
 *
 * Names. A function of the allocator is a verb and its object: cachalot_get_statistics,
 * cachalot_set_limit. cachalot_get_<thing> fills a cachalot_<thing>, or what has no structure.
 * Functions of a pool, a capture, a tag, a range, a stream or a trace start with that word.
 *
 * How to read the descriptions. `Driver:` says when a function calls the driver. A function without
 * `Driver:` never does. A driver call can fail with a status of 300 to 399. `Errors:` lists the
 * other statuses of the function, without the prefix CACHALOT_ERROR_. Every function with an
 * allocator can also return NULL, INVALID_HANDLE, POISONED, FORKED and PANIC. Every function with a
 * device can also return UNKNOWN_DEVICE. Sizes are in bytes.
 *
 * Versions. CACHALOT_VERSION is the version of this header, and cachalot_version() the version of
 * the library. Within a major version (before 1.0: within a minor version), programs need no
 * recompilation, and the SONAME stays the same. Additions after 0.1 say `Since`. Declarations under
 * CACHALOT_EXPERIMENTAL may change at any time.
 */
#ifndef CACHALOT_H
#define CACHALOT_H

/** The major version of this header. */
#define CACHALOT_VERSION_MAJOR 0
/** The minor version of this header. */
#define CACHALOT_VERSION_MINOR 1
/** The patch version of this header. */
#define CACHALOT_VERSION_PATCH 0
/** The version of this header as a number that grows with every version: 1002003 is 1.2.3. */
#define CACHALOT_VERSION (CACHALOT_VERSION_MAJOR * 1000000 + CACHALOT_VERSION_MINOR * 1000 + CACHALOT_VERSION_PATCH)

#include "cachalot/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Returns the version of the library, in the form of CACHALOT_VERSION. */
CACHALOT_API uint32_t cachalot_version(void);

/** Returns the version of the library as a text, such as "1.2.3". The text is valid forever. */
CACHALOT_API const char *cachalot_version_string(void);

/** An allocator. The program has only its handle. */
typedef struct cachalot_allocator cachalot_allocator;

/** A stream of CUDA, the type of cudaStream_t and CUstream. NULL and cudaStreamLegacy mean the legacy
 * default stream, and cudaStreamPerThread means the calling thread's own stream. On simulated
 * devices, any number above 2 is a stream, and 1 and 2 are these two. */
typedef struct CUstream_st *cachalot_stream;

/* Flags of cachalot_options; cachalot/simulated.h has CACHALOT_SIMULATED. */
#define CACHALOT_NO_CACHING 0x2u    /**< Passes every request and free to the driver, for memory checkers. */
#define CACHALOT_ASK_STREAM_ID 0x4u /**< Asks the driver for the identity of a stream's handle: see streams.h. */
#define CACHALOT_PEER_ACCESS 0x8u   /**< Gives devices access to each other's memory where possible. */
/** Reads settings from PYTORCH_ALLOC_CONF, or else from PYTORCH_CUDA_ALLOC_CONF. `config` overrides
 * these settings. */
#define CACHALOT_ENVIRONMENT 0x10u
/** Creates the context of a device at the first request. Not allowed with CACHALOT_PEER_ACCESS. */
#define CACHALOT_OPEN_LATER 0x20u
/** Allocates pinned memory of the host instead of memory of the devices: see devices.h. Not allowed
 * with CACHALOT_SIMULATED, CACHALOT_PEER_ACCESS and CACHALOT_OPEN_LATER. */
#define CACHALOT_HOST 0x40u
/** Promises that the end of every stream is reported by cachalot_stream_destroyed: see streams.h.
 * Not allowed with CACHALOT_ASK_STREAM_ID. */
#define CACHALOT_STREAMS_REPORTED 0x80u

/**
 * The options of an allocator. CACHALOT_OPTIONS_INIT selects every device and the default settings.
 *
 * The setting `policy` selects a policy: caching (the default), bfc, buddy, size_class, slab,
 * stitched, direct or planned.
 * Other settings follow after commas: "policy:slab,largest_object_kb:64". The policy planned serves
 * repeated iterations from a plan, and all other requests by the policy that `fallback` names:
 * "policy:planned,fallback:bfc". An unknown policy or key is INVALID_CONFIG, and
 * cachalot_last_error names the most similar key. docs/configuration.md describes every setting,
 * and cachalot_visit_settings lists them.
 */
typedef struct cachalot_options {
  size_t struct_size;       /**< sizeof(cachalot_options). */
  uint32_t flags;           /**< CACHALOT_SIMULATED and the other flags, combined by `|`. */
  uint32_t device_count;    /**< The number of devices, 127 at most; 0: all of the driver, or one simulated device. */
  const int *devices;       /**< Numbers of the driver: device i is devices[i]. NULL: 0, 1, 2 … */
  void *const *contexts;    /**< A CUcontext for each device, which must stay valid; NULL: the primary contexts. */
  const char *config;       /**< Settings in the syntax of PYTORCH_CUDA_ALLOC_CONF; NULL: the defaults. */
  uint64_t limit_bytes;     /**< The limit on reserved bytes of each device; 0: no limit. */
  uint64_t simulated_bytes; /**< The memory of each simulated device; 0: 16 GiB. */
} cachalot_options;
/** Initialises cachalot_options. */
#define CACHALOT_OPTIONS_INIT {sizeof(cachalot_options), 0, 0, NULL, NULL, NULL, 0, 0}

/** Creates an allocator, and writes the handle to `out`. NULL as `options` means
 * CACHALOT_OPTIONS_INIT. A process can have 1024 allocators at a time. Memory is allocated later,
 * when requests need it. A setting without effect is not an error: a line on the standard error
 * stream names the key and the reason, once in a process.
 *   - Driver: loads and starts the driver, and retains a context on each device (0.1 s and more for
 *     the first context).
 *   - Errors: STRUCT_SIZE, INVALID_ARGUMENT, INVALID_CONFIG, UNKNOWN_DEVICE, NO_DRIVER,
 *     DRIVER_TOO_OLD, TABLE_FULL. */
CACHALOT_CHECKED cachalot_status cachalot_create(const cachalot_options *options, cachalot_allocator **out);

/** Destroys an allocator: waits for pending frees, releases the memory, then the contexts.
 * Afterwards the handle is invalid, whatever the status is, except after BUSY and FORKED. NULL is
 * allowed, and does nothing. No other call of the allocator may be running. Blocks still allocated
 * and pools with users keep their memory until the end of the process, so that running work stays
 * safe, and the status is STILL_HELD. A capture that was started and not ended keeps memory, too.
 *   - Driver: yes, and waits for the device.
 *   - Errors: STILL_HELD, BUSY; POISONED, after which no memory is released. */
CACHALOT_API cachalot_status cachalot_destroy(cachalot_allocator *allocator);

/** Allocates a block of at least `bytes` on `device`, usable on `stream` immediately, and writes
 * the address to `out`. The address is a multiple of 512, under `policy:bfc` of 256. For 0 bytes,
 * the address is NULL. A new block has undefined contents, possibly those of an earlier block of
 * the allocator. With "zero:on_alloc" it is cleared, and "pattern" fills it.
 *   - Driver: if no cached block fits, or frees are pending; never for a cached block.
 *   - Errors: OUT_OF_MEMORY, REJECTED, TOO_LARGE, INVALID_STREAM (also for any stream but NULL with
 *     CACHALOT_HOST), TABLE_FULL. */
CACHALOT_CHECKED cachalot_status cachalot_malloc(const cachalot_allocator *allocator, int device, size_t bytes,
                                                 cachalot_stream stream, void **out);

/** Frees a block in the order of the block's stream: submit the last use before the call. NULL is
 * allowed, and does nothing.
 *   - Driver: records an event for each stream of cachalot_record_stream. Under "policy:direct",
 *     without a cache, and with "guard", "canary", "pattern" or "zero:on_free", a free calls the
 *     driver as well; otherwise never.
 *   - Errors: INVALID_POINTER (foreign address, address inside a block, block freed before),
 *     TABLE_FULL. After an error, the program still owns the block. */
CACHALOT_API cachalot_status cachalot_free(const cachalot_allocator *allocator, void *block);

/** Announces that submitted work on `stream` uses the block. After the free, the block stays
 * pending until the work is done. For the block's own stream, and for a NULL block, the call does
 * nothing.
 *   - Driver: for a created stream, the call records an event, so that the program may destroy the
 *     stream before the free. With CACHALOT_STREAMS_REPORTED only while a graph is captured.
 *   - Errors: INVALID_POINTER, INVALID_STREAM, TABLE_FULL, and those of the driver. */
CACHALOT_API cachalot_status cachalot_record_stream(const cachalot_allocator *allocator, void *block,
                                                    cachalot_stream stream);

/** Returns the message of the calling thread's last failure, at most 4095 bytes; "" without a
 * failure. For CACHALOT_ERROR_OUT_OF_MEMORY, the message is the whole report. The text is valid
 * until the thread's next failure or the end of the thread. */
CACHALOT_API const char *cachalot_last_error(void);

/** Returns the driver's error code (a CUresult) of the calling thread's last failure; 0 if the
 * driver was not involved. */
CACHALOT_API uint32_t cachalot_last_driver_code(void);

/** A quantity over time. */
typedef struct cachalot_counter {
  int64_t current;   /**< The current value. */
  int64_t peak;      /**< The highest value since cachalot_reset_peaks. */
  int64_t allocated; /**< The sum of all increases since cachalot_reset_accumulated. */
  int64_t freed;     /**< The sum of all decreases since cachalot_reset_accumulated. */
} cachalot_counter;

/** The statistics of a device. cachalot_find_statistic has more statistics, by name. */
typedef struct cachalot_statistics {
  size_t struct_size;                    /**< sizeof(cachalot_statistics). */
  cachalot_counter allocations;          /**< Allocated blocks. */
  cachalot_counter allocated_bytes;      /**< Bytes of allocated blocks. */
  cachalot_counter active_blocks;        /**< Allocated and pending blocks. */
  cachalot_counter active_bytes;         /**< Bytes of allocated and pending blocks. */
  cachalot_counter requested_bytes;      /**< Requested bytes of allocated and pending blocks. */
  cachalot_counter inactive_split_bytes; /**< Bytes of free blocks in segments that are in use: fragmentation. */
  cachalot_counter segments;             /**< Segments from the driver. */
  cachalot_counter reserved_bytes;       /**< Bytes of segments. */
  uint64_t device_allocs;                /**< Driver calls that allocated memory. */
  uint64_t device_frees;                 /**< Driver calls that released memory. */
  uint64_t alloc_retries;                /**< Requests that released the whole cache. */
  uint64_t ooms;                         /**< Requests that failed because memory ran out. */
  uint64_t leaked_bytes;                 /**< Bytes that the driver failed to release; never allocated again. */
} cachalot_statistics;
/** Initialises cachalot_statistics. */
#define CACHALOT_STATISTICS_INIT                                                                                       \
  {sizeof(cachalot_statistics), {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0},    \
   {0, 0, 0, 0}, {0, 0, 0, 0}, 0, 0, 0, 0, 0}

/** Reads the statistics of a device. While other threads allocate and free, the numbers belong to
 * slightly different moments, and a peak may miss a call that is still under way; after the call
 * has returned, the peak is exact.
 *   - Errors: STRUCT_SIZE. */
CACHALOT_API cachalot_status cachalot_get_statistics(const cachalot_allocator *allocator, int device,
                                                     cachalot_statistics *out);

/** Changes settings on every device, by PyTorch's rules: unless `config` names them,
 * max_split_size_mb, max_non_split_rounding_mb, garbage_collection_threshold and
 * roundup_power2_divisions return to their defaults, and all other settings keep their values.
 * Blocks and segments do not change.
 *   - Driver: only if `config` has per_process_memory_fraction.
 *   - Errors: INVALID_CONFIG. */
CACHALOT_API cachalot_status cachalot_configure(const cachalot_allocator *allocator, const char *config);

/** Writes the active settings, "policy:caching" if there are none, with a final NUL, to the
 * `capacity` bytes at `buffer`, and the length without the NUL to `length`. Either pointer may be
 * NULL; with a NULL buffer the capacity is 0, and the call only returns the length.
 *   - Errors: BUFFER_TOO_SMALL. */
CACHALOT_API cachalot_status cachalot_get_config(const cachalot_allocator *allocator, int device, char *buffer,
                                                 size_t capacity, size_t *length);

#ifdef __cplusplus
}
#endif

#include "cachalot/streams.h"
#include "cachalot/blocks.h"
#include "cachalot/cache.h"
#include "cachalot/devices.h"
#include "cachalot/pools.h"
#include "cachalot/tags.h"
#include "cachalot/parking.h"
#include "cachalot/ranges.h"
#include "cachalot/plan.h"
#include "cachalot/settings.h"
#include "cachalot/diagnose.h"
#include "cachalot/simulated.h"

#endif
