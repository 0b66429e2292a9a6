/**
 * @file cachalot.h
 * The C interface of cachalot, a GPU memory allocator. The text of this file is the contract. C++ programs use
 * cachalot.hpp.
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
 * How do I …
 *   - make and destroy an allocator: cachalot_create, cachalot_destroy
 *   - allocate and free: cachalot_malloc, cachalot_free, cachalot_free_sized
 *   - free at a number of the program's own work: cachalot_free_at, cachalot_set_safe_frontier
 *   - use a block on a second stream: cachalot_record_stream, cachalot_record_use
 *   - destroy a stream: cachalot_stream_destroyed
 *   - find the block of an address: cachalot_get_block
 *   - find memory errors: "guard:all", cachalot_explain_address
 *   - register memory with a network adapter or another library: cachalot_get_extents, cachalot_pin, cachalot_on_map
 *   - share memory with another process: cachalot_pin, cachalot_export_fd
 *   - learn why a call failed: cachalot_last_error, cachalot_status_name, cachalot_last_driver_code
 *   - limit memory: cachalot_set_limit, cachalot_set_memory_fraction
 *   - return cached memory to the driver: cachalot_empty_cache, cachalot_trim, cachalot_pool_trim, cachalot_tag_trim
 *   - change settings: cachalot_configure, cachalot_get_config
 *   - capture a graph: cachalot_pool_create, cachalot_capture_begin, cachalot_capture_end, cachalot_pool_release
 *   - separate some requests from the others: cachalot_pool_begin, cachalot_pool_end
 *   - lend memory to others for a while: cachalot_pool_set_tag, cachalot_park, cachalot_wake
 *   - limit parts of a program: cachalot_pool_set_tag, cachalot_tag_set_limits, cachalot_tag_trim,
 * cachalot_get_tag_report
 *   - grow a table or a cache in place: cachalot_range_reserve, cachalot_range_commit, cachalot_range_decommit
 *   - let a second GPU access memory: cachalot_enable_peer_access
 *   - allocate pinned memory of the host: CACHALOT_HOST
 *   - plan repeated iterations: cachalot_begin_iteration, cachalot_end_plans, cachalot_get_plan_report
 *   - plan buffers with known lives: cachalot_plan_buffers
 *   - let settings adjust themselves: "tune:auto", cachalot_begin_iteration or cachalot_maintain_every,
 * cachalot_get_tune_report
 *   - read statistics: cachalot_get_statistics, cachalot_find_statistic, cachalot_visit_statistics,
 * cachalot_reset_peaks, cachalot_write_metrics
 *   - react when memory runs out: cachalot_on_shortage, cachalot_on_out_of_memory
 *   - see every block, or what happened: cachalot_snapshot, cachalot_trace_start, cachalot_on_stack
 *   - predict requests: cachalot_get_forecast, cachalot_get_fit
 *
 * Platforms
 *   - Linux on x86-64 with glibc, and NVIDIA GPUs with a driver for CUDA 11.4 or later. Windows, macOS, other
 *     processors and other GPUs are not supported.
 *   - C11 or C17 with GCC or Clang; C++17 or later, nvcc included.
 *   - Simulated devices (CACHALOT_SIMULATED) need neither a GPU nor a driver.
 *
 * Ownership
 *   - The program owns an allocator from cachalot_create to cachalot_destroy. The handle is a number in the shape of a
 *     pointer: compare and copy it, but never dereference it. Every function checks the handle. A destroyed or foreign
 *     handle is an error, and never a crash. cachalot_destroy(NULL) does nothing.
 *   - The program owns a block from cachalot_malloc to cachalot_free. The address is an address of device memory, and
 *     the host must not dereference it, except with CACHALOT_HOST. Addresses are unique among the allocators of a
 *     process.
 *   - A function reads its texts and structures only during the call. Returned texts belong to the library, and the
 *     function says how long a text is valid.
 *   - Set the first field of a structure, `struct_size`, to sizeof, as the _INIT macros do. Programs then work with an
 *     older or newer library. If the program's structure is shorter than the library's, missing fields count as 0. If
 *     the structure is longer, extra fields must be 0 where the library reads, and stay unchanged where it writes.
 *   - Allocators share nothing, and no setting applies to the whole process.
 *
 * Threads
 *   - Any thread may call any function. A function with a `const cachalot_allocator *` may run at the same time as any
 *     other function. cachalot_destroy must not run at the same time as another call of the same allocator.
 *   - Requests on different streams share no lock. During a driver call or a callback, the library holds no lock that a
 *     cached request of another stream needs.
 *   - A callback runs on the thread of the call that caused it, and may call every function of the allocator except
 *     cachalot_destroy, which returns CACHALOT_ERROR_BUSY. A callback must return: no C++ exception and no longjmp may
 *     leave it. Requests made in a callback cause no other callbacks, except those of cachalot_on_map
 *     and cachalot_on_unmap.
 *   - Signal handlers must not call the library, and threads must not be cancelled inside it.
 *
 * Errors
 *   - A function that can fail returns a cachalot_status: CACHALOT_OK, which is 0, or a CACHALOT_ERROR_ number. Numbers
 *     never change. Later versions may add numbers, so treat an unknown number as a failure.
 *   - A failed call writes nothing to the program's variables, and changes no state of the allocator. Only cached
 *     segments may have been returned to the driver.
 *   - cachalot_last_error describes the last failure of the calling thread. cachalot_last_driver_code has the code of
 *     the driver.
 *   - The library finds the program's mistakes (100 to 199) before any change, and without a driver call. A double free
 *     is found until the address is allocated again.
 *   - The library remembers the loss of a CUDA context. Later calls that need the driver return
 *     CACHALOT_ERROR_CONTEXT_LOST without calling the driver.
 *   - A fault of the library is CACHALOT_ERROR_PANIC, and poisons the allocator: later calls return
 *     CACHALOT_ERROR_POISONED. Other allocators continue to work. A library that was built to abort on panics ends the
 *     process instead.
 *
 * Streams
 *   - cachalot_stream is the type of cudaStream_t and CUstream. NULL and cudaStreamLegacy mean the legacy default
 *     stream, and cudaStreamPerThread means the calling thread's own stream.
 *   - A request names a stream, and the block can be used on this stream immediately. Free a block as soon as the last
 * use on the stream has been submitted, without waiting for the device. The next block at this address goes to the same
 *     stream, after the last use.
 *   - Announce work on another stream with cachalot_record_stream, after the submission of the work and before the
 *     free. The freed block then stays pending until the work is done. Order reads and writes between streams with
 *     events, as for memory of cudaMalloc.
 *   - A stream may be destroyed without a report. A driver crashes on the handle of a destroyed stream, so the library
 *     uses the handle of a created stream only in calls that name the stream. These calls record an event for what the
 *     library must know later; otherwise it waits for all work of the device. Default streams always exist.
 *   - The driver reuses the handles of destroyed streams. A new stream with an old handle may receive the old stream's
 *     cached memory. So call cachalot_stream_destroyed before cudaStreamDestroy, or destroy a stream only once its
 *     work is done, or create the allocator with CACHALOT_ASK_STREAM_ID (about 30 ns for each call; driver for
 * CUDA 12.0 or later). Every function with a stream then calls the driver, and fails with its status if the stream is
 * not identified. A thread that used cudaStreamPerThread calls cachalot_stream_destroyed for this stream before the
 *     thread ends.
 *   - With CACHALOT_STREAMS_REPORTED the program promises to report every end of a stream: the library
 *     then waits for single streams, and orders one stream after another. A stream that ends without a report then
 *     crashes the process, unless cachalot_stream_unreported announced it.
 *   - Memory cached for a stream that ended without a report is released when memory is short, and by
 *     cachalot_empty_cache. It is also released when more than 64 streams have memory and the stream made no request
 *     while the number of streams grew by half.
 *   - A new block has undefined contents, possibly of an earlier block of the allocator. With "zero:on_alloc" it is
 *     cleared, and "pattern" fills it.
 *
 * Capture
 *   - Every function may be called while a stream captures a graph, in every capture mode. No function becomes a part
 *     of the graph.
 *   - Call cachalot_capture_begin before a capture starts. Otherwise the capture must not start during a call of
 * another thread: the call may ask the driver for the stream's id at that moment, or whether it is idle, which breaks
 * the capture.
 *   - Under policy:stitched without CACHALOT_STREAMS_REPORTED, announce every capture during which other streams
 * request memory: a request that finds no free block may record an event of the whole device, which breaks a capture
 * that was not announced.
 *   - A graph's memory must remain unused by others while the graph can be launched. Route the requests of the capture
 *     to a private pool, between cachalot_capture_begin and cachalot_capture_end. Call cachalot_pool_release after the
 *     destruction of the graph.
 *   - A block that other streams use and that is freed during a capture stays pending until the end of the capture.
 *     With the setting graph_capture_record_stream_reuse, the graph may use the block again once the block's own stream
 *     has joined all streams that use the block. Work on the block from before the capture must then be complete.
 * Without CACHALOT_STREAMS_REPORTED it has no effect on blocks of created streams, which may be gone at the free.
 *     Without cachalot_capture_begin, this applies only to blocks that a capturing stream uses. Free parts of a
 *     capturing stream's expandable segments stay mapped until the end of the capture.
 *
 * Host memory
 *   - An allocator with CACHALOT_HOST allocates pinned memory of the host, for copies between the host and a GPU. The
 *     memory of device i is on the NUMA node of this GPU, if the system has several nodes. Every GPU of the process
 *     can copy from and to it, and kernels can use it at the same address where the GPU has unified addressing.
 *   - A block belongs to no stream: `stream` is NULL in cachalot_malloc, and the host may write to the block
 * immediately. Announce each stream that copies from or to the block, the default stream included, with
 * cachalot_record_stream or cachalot_record_use. The freed block then stays pending until the copies are done.
 *   - Under the policy caching, the settings that `config` does not name are "compact:0.01,exact_segments:True". A
 * limit counts host memory, and cachalot_get_device_info describes the memory of the system, or of the process's
 * control group.
 *   - The segments are mapped in huge pages and touched by several threads, and then registered with the driver
 *     (cuMemHostRegister). A request for more memory than the system has left is OUT_OF_MEMORY. A forked child does not
 *     have the memory: an access ends the child.
 *   - There is no virtual memory: `expandable_segments` has no effect, and there are no elastic ranges.
 *
 * Fork
 *   - CUDA does not survive a fork. In a child of the process with the first allocator, cachalot_create and every
 *     function with an allocator return CACHALOT_ERROR_FORKED, take no lock and call no driver. The parent is not
 *     affected. A child that calls exec, or never calls the library, works as usual.
 *
 * Shutdown
 *   - At the end of a process or thread, the library does nothing: the system releases the memory. Destroying an
 *     allocator before the end is optional, and must happen while the driver works. Functions that run at exit may find
 *     the driver gone: driver calls then return CACHALOT_ERROR_SHUTDOWN. The thread of cachalot_maintain_every ends its
 *     round before the driver ends, and starts no other one.
 *   - The library never unloads the driver. Do not unload the library while an allocator exists.
 *   - Destroy every allocator of a device before cudaDeviceReset, cuDevicePrimaryCtxReset or the end of its context.
 * The memory of cached and live blocks is gone afterwards. The next call that needs the driver finds this out and
 * returns CACHALOT_ERROR_CONTEXT_LOST, and so does every later request; a request that the cache serves before that
 * does not find it out. cachalot_check_health asks the driver. Drivers before CUDA 12.0 cannot tell a recreated context
 * from the former one. cachalot_destroy returns the same status, and a new allocator works. Memory on pages stays on
 * the device until the process ends.
 *
 * Versions
 *   - CACHALOT_VERSION is the version of this header, and cachalot_version() the version of the library. Within a major
 *     version (before 1.0: within a minor version), programs need no recompilation, and the SONAME stays the same.
 *   - Additions after 0.1 say `Since`. Declarations under CACHALOT_EXPERIMENTAL may change at any time.
 *
 * How to read the descriptions
 *   - `Driver:` says when a function calls the driver. A function without `Driver:` never does. A driver call can fail
 *     with a status of 300 to 399.
 *   - `Errors:` lists the other statuses of the function, without the prefix CACHALOT_ERROR_. Every function with an
 *     allocator can also return NULL, INVALID_HANDLE, POISONED, FORKED and PANIC. Every function with a device can also
 *     return UNKNOWN_DEVICE.
 *   - Sizes are in bytes.
 */
#ifndef CACHALOT_H
#define CACHALOT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The major version of this header. */
#define CACHALOT_VERSION_MAJOR 0
/** The minor version of this header. */
#define CACHALOT_VERSION_MINOR 1
/** The patch version of this header. */
#define CACHALOT_VERSION_PATCH 0

/** The version of this header as a number that grows with every version: 1002003 is 1.2.3. */
#define CACHALOT_VERSION (CACHALOT_VERSION_MAJOR * 1000000 + CACHALOT_VERSION_MINOR * 1000 + CACHALOT_VERSION_PATCH)

#if defined(__GNUC__)
/** Marks a function of the library. */
#define CACHALOT_API __attribute__((visibility("default")))
/** Marks a function whose status must be used. */
#define CACHALOT_CHECKED CACHALOT_API __attribute__((warn_unused_result))
#else
/** Marks a function of the library. */
#define CACHALOT_API
/** Marks a function whose status must be used. */
#define CACHALOT_CHECKED CACHALOT_API
#endif

/* ---- Types ---- */

/** The result of a call: one of the numbers below, or a number of a later version. */
typedef int32_t cachalot_status;

/** The values of cachalot_status. */
enum {
  CACHALOT_OK = 0, /**< The call succeeded. */
  /* 100 to 199: a mistake of the program. Nothing has changed, and the driver was not called. */
  CACHALOT_ERROR_NULL = 110,             /**< A required pointer is NULL. */
  CACHALOT_ERROR_STRUCT_SIZE = 114,      /**< `struct_size` is out of range, or an unknown field is not 0. */
  CACHALOT_ERROR_INVALID_HANDLE = 120,   /**< The handle is no allocator, or a destroyed allocator. */
  CACHALOT_ERROR_POISONED = 124,         /**< An earlier call of the allocator ended in CACHALOT_ERROR_PANIC. */
  CACHALOT_ERROR_BUSY = 128,             /**< A callback called cachalot_destroy for its own allocator. */
  CACHALOT_ERROR_UNKNOWN_DEVICE = 132,   /**< The allocator has no device with this number. */
  CACHALOT_ERROR_INVALID_POINTER = 136,  /**< The address is no allocated block. */
  CACHALOT_ERROR_WRONG_SIZE = 140,       /**< The block was requested with another size. */
  CACHALOT_ERROR_NOT_PINNED = 142,       /**< No memory at the address is pinned. */
  CACHALOT_ERROR_TOO_LARGE = 144,        /**< No device has so much memory: 1 EiB or more after rounding. */
  CACHALOT_ERROR_INVALID_STREAM = 148,   /**< No stream can have this handle. */
  CACHALOT_ERROR_UNKNOWN_POOL = 152,     /**< The device has no such private pool, or the pool was released. */
  CACHALOT_ERROR_UNKNOWN_TAG = 153,      /**< No pool of the device has this tag. */
  CACHALOT_ERROR_UNKNOWN_RANGE = 154,    /**< The device has no such elastic range, or the range was released. */
  CACHALOT_ERROR_NOT_ROUTED = 156,       /**< No route and no capture leads to the pool. */
  CACHALOT_ERROR_INVALID_CONFIG = 160,   /**< The configuration string is not valid, or not UTF-8. */
  CACHALOT_ERROR_INVALID_FRACTION = 164, /**< The fraction is not from 0 to 1. */
  CACHALOT_ERROR_UNKNOWN_KEY = 168,      /**< No statistic has this name. */
  CACHALOT_ERROR_INVALID_ARGUMENT = 172, /**< Flags, or another argument, have no meaning. */
  CACHALOT_ERROR_BUFFER_TOO_SMALL = 176, /**< The result does not fit into the buffer. */
  CACHALOT_ERROR_PARKED = 180,           /**< The memory is parked: wake it first. */
  CACHALOT_ERROR_NOT_PARKABLE = 184,     /**< The memory cannot be parked or woken now, for the reason in the text. */
  /* 200 to 299: something ran out. */
  CACHALOT_ERROR_OUT_OF_MEMORY = 210, /**< Device memory, after the release of all cached memory. */
  CACHALOT_ERROR_REJECTED = 214,      /**< Device memory, under `throw_on_cudamalloc_oom`, without a release. */
  CACHALOT_ERROR_TABLE_FULL = 220,    /**< Host memory, or a table of the library. */
  CACHALOT_ERROR_STILL_HELD = 230,    /**< In cachalot_destroy, blocks, ranges or pools were in use, or the driver had
                                            failed to release memory. In cachalot_pool_empty, cachalot_pool_trim and
                                            cachalot_tag_trim, a captured graph has the memory. */
  /* 300 to 399: the driver. */
  CACHALOT_ERROR_NO_DRIVER = 310,      /**< There is no CUDA driver, or the driver did not start. */
  CACHALOT_ERROR_DRIVER_TOO_OLD = 314, /**< The driver is older than CUDA 11.4, or does not have a function. */
  CACHALOT_ERROR_DRIVER = 320,         /**< The driver failed: see cachalot_last_driver_code. */
  CACHALOT_ERROR_UNSUPPORTED = 330,    /**< The device or the driver does not have this feature. */
  CACHALOT_ERROR_CAPTURING = 340,      /**< The operation is not possible while a stream captures a graph. */
  CACHALOT_ERROR_CONTEXT_LOST = 350,   /**< The CUDA context is lost, for example after a fault in a kernel. */
  CACHALOT_ERROR_SHUTDOWN = 354,       /**< The driver is shutting down. */
  CACHALOT_ERROR_FORKED = 358,         /**< The process is a forked child. */
  /* 400 to 499: the host. */
  CACHALOT_ERROR_IO = 410,      /**< A file could not be written. */
  CACHALOT_ERROR_STOPPED = 420, /**< A callback stopped the operation. */
  /* 900 to 999: the library. */
  CACHALOT_ERROR_PANIC = 910 /**< A fault of the library; the allocator is poisoned. */
};

/** An allocator, known by its handle: see Ownership. */
typedef struct cachalot_allocator cachalot_allocator;

/** A stream of CUDA, the type of cudaStream_t and CUstream. On simulated devices, any number above 2 is a stream:
 * 1 and 2 are cudaStreamLegacy and cudaStreamPerThread, there as well. */
typedef struct CUstream_st *cachalot_stream;

/** The name of a private pool on a device. {0, 0} is the default pool. */
typedef struct cachalot_pool {
  uint64_t first;  /**< The first half of the name. */
  uint64_t second; /**< The second half of the name. */
} cachalot_pool;

/** An elastic range: addresses that the program fills with memory part by part. Copy the structure freely; its fields
 * never change. */
typedef struct cachalot_range {
  const cachalot_allocator *allocator; /**< The allocator that reserved the range. */
  uint64_t number;                     /**< The number of the range. */
  void *base;                          /**< The address of the first byte. */
  size_t bytes;                        /**< The reserved bytes: `max_bytes`, rounded up to whole pages. */
  size_t page_bytes;                   /**< The bytes of a page, 2 MiB on present GPUs. */
  int device;                          /**< The number of the device. */
  uint32_t reserved;                   /**< 0. */
} cachalot_range;

/** Asks the program to free memory for a request of `bytes` that no cached block can serve. Returns 0 if nothing was
 * freed. After another value, the library searches the cache again before it calls the driver. */
typedef int (*cachalot_shortage_callback)(void *userdata, int device, size_t bytes);

struct cachalot_oom_report;
/** Tells the program that a request is about to fail. The report is valid until the callback returns. */
typedef void (*cachalot_oom_callback)(void *userdata, const struct cachalot_oom_report *report);

/** Tells the program of a page: the `bytes` of device memory at `address`. */
typedef void (*cachalot_mapping_callback)(void *userdata, int device, void *address, size_t bytes);

/** Receives a statistic. The key is valid until the callback returns. Returns 0 to continue. */
typedef int (*cachalot_statistic_visitor)(void *userdata, const char *key, int64_t value);

struct cachalot_trace_entry;
/** Receives an event of a trace. The event is valid until the callback returns. Returns 0 to continue. */
typedef int (*cachalot_trace_visitor)(void *userdata, const struct cachalot_trace_entry *entry);

/** Receives the next part of a text, without a final NUL. Returns 0 to continue. */
typedef int (*cachalot_writer)(void *userdata, const char *text, size_t bytes);

/* Flags of cachalot_options. */
#define CACHALOT_SIMULATED 0x1u     /**< Simulates devices: decisions without memory. */
#define CACHALOT_NO_CACHING 0x2u    /**< Passes every request and free to the driver, for memory checkers. */
#define CACHALOT_ASK_STREAM_ID 0x4u /**< Asks the driver for the identity of a stream's handle: see Streams. */
#define CACHALOT_PEER_ACCESS 0x8u   /**< Gives devices access to each other's memory where possible. */
/** Reads settings from PYTORCH_ALLOC_CONF, or else from PYTORCH_CUDA_ALLOC_CONF. `config` overrides these
 * settings. */
#define CACHALOT_ENVIRONMENT 0x10u
/** Makes the context of a device at the first request. Not allowed with CACHALOT_PEER_ACCESS. */
#define CACHALOT_OPEN_LATER 0x20u
/** Allocates pinned memory of the host instead of memory of the devices: see Host memory. Not allowed with
 * CACHALOT_SIMULATED, CACHALOT_PEER_ACCESS and CACHALOT_OPEN_LATER. */
#define CACHALOT_HOST 0x40u
/** Promises that the end of every stream is reported by cachalot_stream_destroyed: see Streams. Not allowed with
 * CACHALOT_ASK_STREAM_ID. */
#define CACHALOT_STREAMS_REPORTED 0x80u

/**
 * The options of an allocator. CACHALOT_OPTIONS_INIT selects every device and the default settings.
 *
 * The setting `policy` selects a policy: caching (the default), bfc, buddy, size_class, slab,
 * stitched, direct or planned.
 * Other settings follow after commas: "policy:slab,largest_object_kb:64". The policy planned serves repeated
 * iterations from a plan, and all other requests by the policy that `fallback` names: "policy:planned,fallback:bfc".
 * An unknown policy or key is INVALID_CONFIG, and cachalot_last_error names the most similar key. docs/configuration.md
 * describes every setting.
 *
 * The settings, generated: see tests/tests/configuration_page.rs.
 * allow_growth (`bfc`): `True` or `False`; default `True`.
 *     Segments start at `first_region_mb` and double. With `False`, the first segment takes
 *     everything up to the memory limit.
 * arena_mb (`buddy`): a power of two in MiB up to 1048576; default `64`.
 *     The size of a segment. A larger request gets a separate segment with the next power of two.
 * backend (every policy): `native`: the driver's own pool is not an allocator of this library;
 * default `native`.
 *     No effect. The key is accepted for existing strings.
 * canary (`caching` and `bfc`): `True` or `False`; default `False`.
 *     Each block is at least 512 bytes larger than its request. The bytes after the request, 1,024
 *     at most, get a value that is checked once the work known at the free is complete. A line in
 *     the log names a block whose value has changed. Under `guard:after`, only the bytes to the end
 *     of the last 512 are checked. A free takes a call of the driver more.
 * chunk_mb (`size_class`): a whole number of MiB from 2 to 1099511627776; default `1024`.
 *     The size of a segment from which blocks are cut. A larger request gets a larger segment.
 * compact (`caching`): a number from 0 to 1; default off.
 *     The largest part of memory held beyond the most that was ever in use: 0.05 is 5 %. A segment
 *     above `large_segment_size_mb` serves only requests of at least 4/5 of it. Where another
 *     segment would exceed the budget, any free block serves the request, or else wholly free large
 *     segments are released first, if the device has finished with them. A request never waits for
 *     that. No effect with expandable segments.
 * compact_slack_mb (`caching`): a whole number of MiB from 0 to 1099511627776; default `0`.
 *     Memory beyond the budget of `compact`. For a program whose freed memory waits for the device
 *     before it serves again: otherwise what waits has segments released and obtained again.
 * completed_pages_only (`stitched`): `True` or `False`; default `False`.
 *     A page moves only after the work that used the page is complete, and no stream is ordered
 *     after another for memory. For programs with programmatic dependent launch or persistent
 *     kernels.
 * decisions (`caching`): `pytorch` or `improved`; default `pytorch`.
 *     With `pytorch`, each decision is PyTorch's. `improved` repairs four defects of these
 *     decisions. Shared events: freed blocks that other streams use share an event, because an
 *     event for each free is a call of the driver. Late questions: only a request that no free
 *     block can serve asks whether events are complete, because a question at each request is a
 *     call of the driver, too. Short waits: a request short of memory waits for one event after the
 *     other until a block is free, because PyTorch waits for all events. Splits at any size:
 *     `max_split_size_mb` has no effect on expandable segments, because their free neighbours join
 *     to a block above this size, which would serve no smaller request while the segment grows.
 * exact_segments (`caching`): `True` or `False`; default `False`.
 *     A request above 1 MiB gets a segment of its own size, rounded up to 4 KiB. For memory that
 *     the system gives in small pages, such as pinned host memory. With `compact`, a whole segment
 *     serves only requests that leave less than 1 % of it, or up to a quarter of the request if
 *     `compact` is 0.25 or more and the rest is not cut off. Where another segment would exceed the
 *     budget, segments are released.
 * expandable_segments (`caching` and `bfc`): `True` or `False`; default `False`.
 *     Segments grow and shrink in virtual memory, and neighbouring free memory forms a single
 *     block.
 * expandable_segments_reserve (`caching` and `bfc` and `stitched`): a positive part of the device
 * like `0.5` or a size in GiB like `40G`; default 9/8 of the device; under `stitched`, 4 times the
 * device.
 *     The addresses that an expandable segment reserves, 9/8 of the device at most; under
 *     `stitched`, those of each heap, 4 times the device at most. A process has 128 TiB of
 *     addresses for all its devices, and each stream of each pool takes such reservations. Where
 *     they run out, later ones are shorter.
 * expandable_segments_reserve_by_class (`caching` and `bfc`): a list like `[name:0.5,other:40G]`;
 * default none.
 *     No effect: the library knows no classes of streams. Up to 8 classes are checked and reported.
 * fallback (`planned`): `caching`, `bfc`, `buddy`, `size_class`, `slab` or `stitched`; default
 * `caching`.
 *     The policy for all requests outside of the plan. The keys of the fallback are accepted as
 *     well.
 * first_region_mb (`bfc`): a whole number of MiB from 1 to 1099511627776; default `2`.
 *     The size of the first segment of a stream.
 * garbage_collection_threshold (`caching`): a number above 0 and below 1; default off.
 *     A part of the memory limit. While more is held, old and wholly free segments are released
 *     before the driver is asked for memory. Without a limit nothing is released.
 * graph_capture_record_stream_reuse (`caching`): `True` or `False`; default `False`.
 *     A block that several streams of a graph use, freed during the capture, may be reused in the
 *     graph after all these uses. Off: the block stays pending until the capture ends.
 * guard (`caching` and `bfc`): `off`, `all`, `after`, `before` or `sampled:N` with a number above
 * 0; default `off`.
 *     Which blocks get their own addresses, which are unmapped once the work known at the free is
 *     complete: a kernel that still uses the block faults. `all`: every block, and small ones share
 *     physical pages. `after`: every block, at the end of its own pages, so that an overrun faults,
 *     too. `before`: at the start, so that an underrun faults. `sampled:N`: one block in N, as with
 *     `after`. Needs virtual memory. A request of a private pool, or without enough memory, gets an
 *     ordinary block.
 * large_segment_size_mb (`caching` and `slab`): a whole number of MiB from 11 to 1099511627776;
 * default `20`.
 *     The size of a segment for several large blocks. Without expandable segments, a request of 10
 *     MiB or more gets a separate segment.
 * largest_object_kb (`slab`): a whole number of KiB from 1 to 512; default `512`.
 *     The largest request for a slab, rounded down to a size of slabs. Larger requests are placed
 *     as under `caching`.
 * max_internal_fragmentation_mb (`bfc`): a whole number of MiB from 0 to 1099511627776; default
 * `128`.
 *     A free block is split if at least this much is left, or if the block is at least twice as
 *     large as the request.
 * max_non_split_rounding_mb (`caching`): a whole number of MiB from 20 to 1099511627776; default
 * `large_segment_size_mb`.
 *     A block of `max_split_size_mb` or more serves a request only if the difference in size is
 *     less than this.
 * max_split_size_mb (`caching`): a whole number of MiB from 20 to 1099511627776; default no limit.
 *     Blocks of this size and above are never split, and serve only requests of this size and
 *     above.
 * max_stall_us (`stitched`): a whole number of microseconds; default `2000`.
 *     How long a request spends in mapping pages. A request that would take longer allocates up to
 *     1 % of the peak of live memory beyond `slack`; beyond that, it takes longer.
 * nvtx (every policy): `off` or `auto`; default `auto`.
 *     With `auto`, a memory checker that has announced itself by the variable
 *     `NVTX_INJECTION64_PATH`, such as compute-sanitizer, is told of each segment and of each
 *     block, and finds accesses beyond a block and after its free. No block is on pages then, since
 *     such checkers refuse them: `expandable_segments`, `guard` and `policy:stitched` have no
 *     effect. Without such a checker nothing happens.
 * parity (`caching`): `True` or `False`; default `True`.
 *     An older name of `decisions`: `True` is `decisions:pytorch`, and `False` is
 *     `decisions:improved`, with its four repairs.
 * pattern (`caching` and `bfc`): a byte from 0 to 255; default none.
 *     Each byte of a new block, and of a freed one, gets this value, so that a read of memory that
 *     nothing has written shows. `zero` counts more, at its moment.
 * per_process_memory_fraction (every policy): a number from 0 to 1; default `1`.
 *     The largest part of the device's memory for this allocator. 1 means no limit.
 * pinned_free_catch_all (every policy): `True` or `False`; default `False`.
 *     No effect: pinned memory has the settings of other memory.
 * pinned_max_cached_size_mb (every policy): a whole number of MiB from 0 to 1099511627776; default
 * no limit.
 *     No effect: pinned memory has the settings of other memory.
 * pinned_max_round_threshold_mb (every policy): a whole number of MiB from 0 to 1099511627776;
 * default no limit.
 *     No effect: pinned memory has the settings of other memory.
 * pinned_num_register_threads (every policy): a power of two up to 128; default `1`.
 *     No effect: pinned memory has the settings of other memory.
 * pinned_reserve_segment_size_mb (every policy): a whole number of MiB from 1 to 1099511627776;
 * default none.
 *     No effect: pinned memory has the settings of other memory.
 * pinned_use_background_threads (every policy): `True` or `False`; default `False`.
 *     No effect: pinned memory has the settings of other memory.
 * pinned_use_cuda_host_register (every policy): `True` or `False`; default `False`.
 *     No effect: pinned memory has the settings of other memory.
 * pinned_use_hip_host_register (every policy): `True` or `False`; default `False`.
 *     No effect: pinned memory has the settings of other memory.
 * plan_deadline_ms (`planned`): a whole number of milliseconds; default `2000`.
 *     The longest search for a better plan, in the background.
 * policy (every policy): `caching`, `bfc`, `buddy`, `size_class`, `slab`, `stitched`, `direct` or
 * `planned`; default `caching`.
 *     The rules for the placement of blocks. The policy of an allocator cannot change.
 * quarantine (`caching` and `bfc`): a whole number of frees; default `1024`.
 *     For how many frees of guarded blocks the addresses of a freed one stay unmapped. Costs
 *     addresses, not memory.
 * reclaim (`caching` and `bfc`): `off` or `auto`; default `off`.
 *     With `auto`, upkeep (`cachalot_maintain`) gives cached memory back to the driver by what it
 *     is worth: if it is not expected to be needed for as long as the driver's calls take to pay
 *     for within `reclaim_budget`. No request and no free does more for that, and nothing waits for
 *     the device. Off: cached memory goes back when the memory is short, or on demand.
 * reclaim_budget (`caching` and `bfc`): a number from 0 to 1; default `0.01`.
 *     The largest part of the time for the driver's calls that give idle memory back under
 *     `reclaim:auto`, and obtain it again. Less gives less memory back, and later.
 * region_garbage_collection (`bfc`): `True` or `False`; default `True`.
 *     Wholly free segments are released for a request without any other memory.
 * release_lock_on_cudamalloc (every policy): `True` or `False`; default `False`.
 *     No effect: cached requests never wait for a lock during a call of the driver.
 * release_lock_on_hipmalloc (every policy): `True` or `False`; default `False`.
 *     No effect: cached requests never wait for a lock during a call of the driver.
 * retry_ms (`bfc`): a whole number of milliseconds; default `0`.
 *     How long a failing request waits for other threads to free memory. TensorFlow waits 10,000
 *     ms.
 * roundup_power2_divisions (`caching`): a power of two up to 2147483648 or a list like
 * `[256:1,512:2,>:4]`; default off.
 *     Sizes are rounded up to N equal steps in each doubling of the size, and at least to multiples
 *     of 512 bytes.
 * slack (`stitched`): a number from 0 to 1; default `0.012`.
 *     The memory held may exceed the peak of live memory by this part of the peak. Beyond, free
 *     pages move to where a request needs them.
 * strict_stall (`stitched`): `True` or `False`; default `False`.
 *     No request takes longer than `max_stall_us`, whatever it allocates beyond `slack`.
 * throw_on_cudamalloc_oom (every policy): `True` or `False`; default `False`.
 *     A segment beyond `per_process_memory_fraction` is refused at once. Nothing is released and
 *     nothing is retried.
 * tune (`caching`): `auto` or `off`; default `off`.
 *     With `auto`, the allocator records its latest requests, searches the settings of the caching
 *     policy for less reserved memory, and activates the best at an announced iteration or during
 *     upkeep. It takes back settings that do not meet the prediction.
 * tune_budget_ms (`caching`): a whole number of milliseconds; default `2000`.
 *     The longest search of `tune:auto`, on one thread of low priority. The thread rests for nine
 *     times as long afterwards.
 * zero (`caching` and `bfc`): `off`, `on_alloc` or `on_free`; default `off`.
 *     With `on_alloc`, a new block is cleared in the order of its stream. With `on_free`, a freed
 *     block is cleared once the work known at the free is complete, so that no other block gets its
 *     contents.
 * End of the generated settings.
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

/** No limit, for cachalot_set_limit. */
#define CACHALOT_NO_LIMIT UINT64_MAX

/* Flags of a private pool. */
#define CACHALOT_POOL_USE_ON_OOM 0x1u /**< Lends free blocks, but no graph's, to requests of the default pool that would fail. */
#define CACHALOT_POOL_NO_SPLIT 0x2u   /**< Gives each request a whole segment, new or cached. */

/** The requests that a route leads to a private pool. */
typedef int32_t cachalot_route;
/** The values of cachalot_route. */
enum {
  CACHALOT_ROUTE_ALL = 1,    /**< All requests of the device. */
  CACHALOT_ROUTE_STREAM = 2, /**< The requests of a stream. */
  CACHALOT_ROUTE_THREAD = 3  /**< The requests of the calling thread. */
};

/** An allocated block. */
typedef struct cachalot_block {
  size_t struct_size;     /**< sizeof(cachalot_block). */
  void *base;             /**< The first byte. */
  size_t bytes;           /**< The length, at least the requested bytes. */
  size_t requested_bytes; /**< The requested bytes. */
  uint64_t stream_id;     /**< The library's number of the stream; the low 48 bits are the handle. */
  void *segment_base;     /**< The first byte of the segment, which is an allocation of the driver. */
  size_t segment_bytes;   /**< The length of the segment. */
  int device;             /**< The device. */
  uint32_t reserved;      /**< 0. */
} cachalot_block;

/** The first step of a request. */
typedef int32_t cachalot_outcome;
/** The values of cachalot_outcome. */
enum {
  CACHALOT_WOULD_HIT = 1,     /**< Returns the block at `address`, from the cache or a plan. For 0 bytes: NULL. */
  CACHALOT_WOULD_OBTAIN = 2,  /**< Allocates a segment of `bytes` from the driver. */
  CACHALOT_WOULD_EXPAND = 3,  /**< Maps more memory into an expandable segment. */
  CACHALOT_WOULD_RELEASE = 4, /**< Releases cached memory, first the segment at `address`, and then calls the driver. */
  CACHALOT_WOULD_FAIL = 5     /**< Fails: the limit is reached, and no memory can be released. */
};

/** The result of cachalot_get_forecast. */
typedef struct cachalot_forecast {
  size_t struct_size;       /**< sizeof(cachalot_forecast). */
  void *address;            /**< The address of CACHALOT_WOULD_HIT or CACHALOT_WOULD_RELEASE; otherwise NULL. */
  size_t bytes;             /**< The bytes of CACHALOT_WOULD_OBTAIN; otherwise 0. */
  cachalot_outcome outcome; /**< The first step of the request. */
  uint32_t reserved;        /**< 0. */
} cachalot_forecast;

/** The reason why a request would fail; see cachalot_get_fit. */
typedef int32_t cachalot_bound;
/** The values of cachalot_bound. */
enum {
  CACHALOT_BOUND_NONE = 0,     /**< Every request would be served. */
  CACHALOT_BOUND_LIMIT = 1,    /**< The limit: cachalot_set_limit, or cachalot_set_memory_fraction. */
  CACHALOT_BOUND_FRACTION = 2, /**< The fraction above which throw_on_cudamalloc_oom refuses requests. */
  CACHALOT_BOUND_DEVICE = 3,   /**< The free memory of the device, as `device_free_bytes` says. */
  CACHALOT_BOUND_OTHER = 4,    /**< Another reason, such as addresses of virtual memory. */
  CACHALOT_BOUND_TAG = 5       /**< `max_bytes` of the tag of the pool that the requests are routed into. */
};

/** The result of cachalot_get_fit. */
typedef struct cachalot_fit {
  size_t struct_size;         /**< sizeof(cachalot_fit). */
  size_t served;              /**< The requests that would be served: the index of the first that would fail, or all. */
  uint64_t new_bytes;         /**< The bytes that the served requests would add to the bytes held from the device. */
  uint64_t reserved_bytes;    /**< The bytes held from the device after the served requests. */
  uint64_t device_free_bytes; /**< The free memory of the device that the answer assumes. UINT64_MAX: unknown, enough. */
  cachalot_bound bound;       /**< Why the request after the served ones would fail. */
  uint32_t reserved;          /**< 0. */
} cachalot_fit;

/** The driver calls of one kind since cachalot_create. */
typedef struct cachalot_calls {
  uint64_t calls; /**< The number of calls, failed ones included. */
  uint64_t us;    /**< The time of the calling threads in these calls, in microseconds. */
} cachalot_calls;

/** The use and the cost of a device's pages of virtual memory; see cachalot_get_page_statistics. */
typedef struct cachalot_page_statistics {
  size_t struct_size;          /**< sizeof(cachalot_page_statistics). */
  uint64_t mapped_bytes;       /**< Pages mapped where blocks can use them. */
  uint64_t spare_bytes;        /**< Pages mapped nowhere, and parts of pages outside guarded blocks. */
  uint64_t stale_bytes;        /**< Addresses that pages have left, still mapped until their work is done. No memory. */
  uint64_t pinned_bytes;       /**< Mapped pages that neither move nor return to the driver. */
  uint64_t moved_bytes;        /**< Pages moved so far. */
  cachalot_calls reserve;      /**< Addresses reserved: cuMemAddressReserve. */
  cachalot_calls unreserve;    /**< Addresses released: cuMemAddressFree. */
  cachalot_calls create;       /**< Physical memory allocated: cuMemCreate. */
  cachalot_calls destroy;      /**< Physical memory released: cuMemRelease. */
  cachalot_calls map;          /**< Physical memory mapped: cuMemMap. */
  cachalot_calls set_access;   /**< Mapped ranges made accessible: cuMemSetAccess, for all pages mapped side by side. */
  cachalot_calls unmap;        /**< Mappings removed: cuMemUnmap. */
  cachalot_calls export_fd;    /**< Pages exported: cuMemExportToShareableHandle. */
  uint64_t stalls;             /**< Requests and commits under `policy:stitched` that exceeded `max_stall_us`. */
  uint64_t longest_stall_us;   /**< The longest time that one request or commit mapped, under every policy. */
  uint64_t consolidated_bytes; /**< Pages that have replaced shorter ones so far. */
  uint64_t parked_bytes;       /**< Parked memory: addresses without memory of the driver. */
} cachalot_page_statistics;

/** The memory that cachalot_maintain has given back to the driver under `reclaim:auto`, and what it has kept and why;
 * see cachalot_get_reclaim_statistics. A unit is a segment without a block in use, or a page of an expandable segment.
 * The figures from `idle_bytes` on are of the latest call that looked at the memory; the others are sums. */
typedef struct cachalot_reclaim_statistics {
  size_t struct_size;            /**< sizeof(cachalot_reclaim_statistics). */
  uint64_t looks;                /**< Calls that looked at the memory. */
  uint64_t given_back_bytes;     /**< Memory given back. */
  uint64_t given_back_units;     /**< Units given back. */
  uint64_t obtained_again_bytes; /**< Memory that was obtained in place of memory given back. */
  uint64_t obtained_again_units; /**< Units that were obtained in place of units given back. */
  uint64_t too_early_units;      /**< Of these, the ones that were released too early. */
  uint64_t driver_us;            /**< The time of the driver's calls that gave memory back, in microseconds. */
  uint64_t observed_units;       /**< Units whose idle time has ended: what predictions are made from. */
  uint64_t idle_bytes;           /**< Idle memory. */
  uint64_t needed_soon_bytes;    /**< The part of it that is expected to be needed too soon to be worth giving back. */
  uint64_t busy_bytes;           /**< What is worth giving back, and cannot go back without a wait for the device. */
  uint64_t unpaid_bytes;         /**< What is worth giving back, but not within the time or the budget. */
  uint64_t budget_us;            /**< The driver time that is left of the budget, in microseconds. */
  uint64_t caution;              /**< Memory must be idle for longer by 2 to the power of this. Rises with units
                                      that were released too early. */
} cachalot_reclaim_statistics;

/** Which memory is parked. */
typedef int32_t cachalot_park_kind;
/** The values of cachalot_park_kind. */
enum {
  CACHALOT_PARK_TAG = 1,   /**< The private pools with a tag. */
  CACHALOT_PARK_STREAM = 2 /**< The memory of a stream in the default pool. */
};

/** The memory that a call parks, wakes or describes. The memory of a stream must be mapped: under
 * "policy:stitched", or with "expandable_segments:True". A stream without memory stays awake, even
 * if a request of another thread gives it memory during the call. */
typedef struct cachalot_park_target {
  size_t struct_size;      /**< sizeof(cachalot_park_target). */
  uint64_t tag;            /**< With CACHALOT_PARK_TAG, the tag; otherwise not read. */
  cachalot_stream stream;  /**< With CACHALOT_PARK_STREAM, the stream; otherwise not read. */
  cachalot_park_kind kind; /**< CACHALOT_PARK_TAG or CACHALOT_PARK_STREAM. */
  uint32_t reserved;       /**< 0. */
} cachalot_park_target;

/** The contents of parked memory when it wakes. */
typedef int32_t cachalot_park_mode;
/** The values of cachalot_park_mode. */
enum {
  CACHALOT_PARK_KEEP = 0, /**< What it contained before. The host keeps a copy. */
  CACHALOT_PARK_DROP = 1, /**< Anything. */
  CACHALOT_PARK_ZERO = 2  /**< Zeroes. */
};

/** The work that a park waits for. */
typedef int32_t cachalot_park_order;
/** The values of cachalot_park_order. */
enum {
  CACHALOT_PARK_AFTER_DEVICE = 0, /**< All work submitted to the device before. */
  CACHALOT_PARK_AFTER_STREAMS = 1 /**< Work on the streams of the blocks, and on those that blocks were recorded on. */
};

/** The options of cachalot_park. */
typedef struct cachalot_park_options {
  size_t struct_size;        /**< sizeof(cachalot_park_options). */
  cachalot_park_mode mode;   /**< The contents when the memory wakes. */
  cachalot_park_order order; /**< The work that the call waits for. */
} cachalot_park_options;

/** The state of memory that can be parked. */
typedef int32_t cachalot_park_state;
/** The values of cachalot_park_state. */
enum {
  CACHALOT_AWAKE = 1,  /**< On the device. */
  CACHALOT_ASLEEP = 2, /**< Parked. */
  CACHALOT_WAKING = 3  /**< Between cachalot_wake_start and cachalot_wake_wait. */
};

/** Where the memory of a target is; see cachalot_get_park_report. */
typedef struct cachalot_park_report {
  size_t struct_size;        /**< sizeof(cachalot_park_report). */
  uint64_t mapped_bytes;     /**< Pages on the device. */
  uint64_t parked_bytes;     /**< Parked memory. */
  uint64_t kept_bytes;       /**< Parked memory of which the host keeps the contents. */
  uint64_t pinned_bytes;     /**< Pinned pages, which are never parked: part of `mapped_bytes`. */
  uint64_t ordinary_bytes;   /**< Segments that cannot be parked: not mapped, as before the pool had a tag. */
  uint64_t host_bytes;       /**< Pinned host memory for the contents of all parked memory of the device. */
  uint64_t
      idle_host_bytes; /**< The part of `host_bytes` that waits for the next park; see cachalot_retain_host_memory. */
  cachalot_park_state state; /**< Where the memory is. */
  uint32_t reserved;         /**< 0. */
} cachalot_park_report;

/** The memory of a device in use, by name; see cachalot_get_remaining_memory. `used_bytes` is the sum of the next six
 * fields. */
typedef struct cachalot_remaining_memory {
  size_t struct_size;     /**< sizeof(cachalot_remaining_memory). */
  uint64_t used_bytes;    /**< The memory of the device in use, by all processes. */
  uint64_t block_bytes;   /**< Live blocks and committed ranges. */
  uint64_t pending_bytes; /**< Freed blocks that other streams still use. */
  uint64_t cached_bytes;  /**< Free memory of segments and mapped ranges. */
  uint64_t spare_bytes;   /**< Pages in use by no block and not yet given back. */
  uint64_t leaked_bytes;  /**< Memory in doubt after a failure of the driver. */
  uint64_t other_bytes;   /**< What the allocator does not hold: context, modules, graphs, other processes. */
  uint64_t pinned_bytes;  /**< Pinned pages, which are never parked: part of the fields above. */
  uint64_t parked_bytes;  /**< Parked memory: addresses without memory of the driver. */
} cachalot_remaining_memory;

/** The limits of a tag, in the words of Linux's control groups; see cachalot_tag_set_limits. */
typedef struct cachalot_tag_limits {
  size_t struct_size; /**< sizeof(cachalot_tag_limits). */
  uint64_t max_bytes; /**< The most that the tag's pools hold of the device's memory; 0: no limit. */
  uint64_t low_bytes; /**< Up to this, the tag's memory never goes back for others; at most `max_bytes`. */
  uint32_t weight;    /**< The share, relative to the weights of others, when memory is short; 0: 100. */
  uint32_t clear;     /**< 1: pages that leave the tag are filled with zeroes first; otherwise 0. */
} cachalot_tag_limits;

/** The memory held by the pools of a tag; see cachalot_get_tag_report. */
typedef struct cachalot_tag_report {
  size_t struct_size;    /**< sizeof(cachalot_tag_report). */
  uint64_t charge_bytes; /**< Memory held from the device: blocks, and the free rest of their pages and segments. */
  uint64_t live_bytes;   /**< Live blocks: part of `charge_bytes`, unless the memory is parked. */
  uint64_t cached_bytes; /**< Free memory: part of `charge_bytes`. */
  uint64_t max_bytes;    /**< The limit on `charge_bytes`; 0: none. */
  uint64_t low_bytes;    /**< Memory of the tag that does not go back for requests of others. */
  uint64_t refusals;     /**< Requests refused because of `max_bytes`. */
  uint64_t given_bytes;  /**< Memory that went back because of `max_bytes`, or because memory was short. */
  uint32_t weight;       /**< The weight; 0: the tag has no limits. */
  uint32_t clear;        /**< 1: pages are filled with zeroes before they leave the tag; otherwise 0. */
} cachalot_tag_report;

#define CACHALOT_EXTENT_SEGMENT 0x1u /**< The extent is in an ordinary segment, which has no handle to export. */

/** A physical part of a block; see cachalot_get_extents. The structure never grows. */
typedef struct cachalot_extent {
  uint64_t offset;        /**< Offset of the first byte within the block. */
  uint64_t bytes;         /**< The length. */
  uint64_t memory;        /**< The page's number on its device; with CACHALOT_EXTENT_SEGMENT, the segment's address. */
  uint64_t memory_offset; /**< Offset of the first byte within the page or the segment. */
  uint64_t memory_bytes;  /**< The length of the whole page or segment. */
  uint32_t flags;         /**< CACHALOT_EXTENT_SEGMENT, or 0. */
  uint32_t reserved;      /**< 0. */
} cachalot_extent;

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
  uint64_t leaked_bytes;                 /**< Bytes whose release failed in the driver; never allocated again. */
} cachalot_statistics;

/** The progress of the planned policy. */
typedef int32_t cachalot_stage;
/** The values of cachalot_stage. */
enum {
  CACHALOT_STAGE_WAITING = 1,   /**< The next iteration will be observed. Other policies are always in this stage. */
  CACHALOT_STAGE_OBSERVING = 2, /**< This iteration is being observed. */
  CACHALOT_STAGE_PLANNING = 3,  /**< The observed iteration is being planned in the background. */
  CACHALOT_STAGE_READY = 4,     /**< The next announcement activates the plan. */
  CACHALOT_STAGE_SERVING = 5    /**< The plan is active. */
};

/** A report on the planned policy of a device. Counts start with the allocator. */
typedef struct cachalot_plan_report {
  size_t struct_size;         /**< sizeof(cachalot_plan_report). */
  uint64_t announced;         /**< Announced iterations. */
  uint64_t plans;             /**< Plans that became active. */
  uint64_t given_up;          /**< Plans that were given up after too many deviations. */
  uint64_t no_memory;         /**< Plans that could not become active because memory ran out. */
  uint64_t peak_bytes;        /**< The bytes that the latest plan needs, for all streams together. */
  uint64_t lower_bound_bytes; /**< The bytes that any plan of the same requests needs. */
  uint64_t segment_bytes;     /**< The reserved bytes of the active plan. */
  uint64_t served;            /**< Requests served from plans. */
  uint64_t lasting;           /**< Requests that outlive their iteration as observed: served by the fallback. */
  uint64_t extra;             /**< Requests without a place nearby in the plan: served by the fallback. */
  uint64_t missing;           /**< Requests of the plan that the program did not make. */
  uint64_t reordered;         /**< Requests that came later than planned, and were served from the plan. */
  uint64_t occupied;          /**< Requests whose planned bytes were not free yet: served by the fallback. */
  cachalot_stage stage;       /**< The progress. */
  uint32_t reserved;          /**< 0. */
} cachalot_plan_report;

#define CACHALOT_BUFFER_FIXED 0x1u /**< The buffer is at `offset`, and nowhere else. */
#define CACHALOT_BUFFER_GAP 0x2u   /**< The entry is no buffer, but a gap in the life of the last buffer before it. */

/** A buffer with a known life, or a gap of one; see cachalot_plan_buffers. The structure never grows. */
typedef struct cachalot_buffer {
  uint64_t start;     /**< The first step at which the buffer is live. */
  uint64_t end;       /**< The first step at which the buffer is no longer live; UINT64_MAX: live to the end. */
  uint64_t bytes;     /**< The length, above 0. */
  uint64_t alignment; /**< A power of two that divides the offset; 0: 1. */
  uint64_t offset;    /**< With CACHALOT_BUFFER_FIXED, the offset; otherwise not read, but for a gap. */
  uint32_t flags;     /**< CACHALOT_BUFFER_FIXED, CACHALOT_BUFFER_GAP, or 0. */
  uint32_t reserved;  /**< 0. */
} cachalot_buffer;

/** The facts about a plan of cachalot_plan_buffers. */
typedef struct cachalot_buffer_plan {
  size_t struct_size;         /**< sizeof(cachalot_buffer_plan). */
  uint64_t peak_bytes;        /**< The bytes that the buffers need together: the largest `offset + bytes`, not rounded up. */
  uint64_t lower_bound_bytes; /**< No plan needs fewer bytes. */
  int32_t optimal;            /**< 1: it is proven that no plan needs fewer bytes; otherwise 0. */
  uint32_t reserved;          /**< 0. */
} cachalot_buffer_plan;

/** The stage of `tune:auto`. */
typedef int32_t cachalot_tune_stage;
/** The values of cachalot_tune_stage. */
enum {
  CACHALOT_TUNE_OFF = 1,       /**< The setting is off. */
  CACHALOT_TUNE_RECORDING = 2, /**< Requests are recorded. */
  CACHALOT_TUNE_SEARCHING = 3, /**< A search is running in the background. */
  CACHALOT_TUNE_TRIAL = 4      /**< Other settings are active, and are being measured. */
};

/** A report on `tune:auto` on a device: what it did, and why. Counts start with the allocator. Bytes are of the default
 * pool. */
typedef struct cachalot_tune_report {
  size_t struct_size;        /**< sizeof(cachalot_tune_report). */
  uint64_t windows;          /**< Windows of requests that were read: one for each search and each trial. */
  uint64_t searches;         /**< Searches that ended. */
  uint64_t candidates;       /**< Configurations that were run on a window. */
  uint64_t without_gain;     /**< Searches that found nothing better. */
  uint64_t switches;         /**< Settings that became active. */
  uint64_t held;             /**< Trials that met the prediction. */
  uint64_t taken_back;       /**< Settings that were taken back. */
  uint64_t search_us;        /**< The time of all searches, in microseconds. */
  uint64_t before_bytes;     /**< The peak of reserved memory in the window of the latest switch. */
  uint64_t predicted_bytes;  /**< The peak predicted for this window with the new settings. */
  uint64_t after_bytes;      /**< The peak of reserved memory in the latest trial that ended. */
  uint64_t given_back_bytes; /**< Idle memory given back after switches. */
  uint64_t retired_bytes;    /**< Segments that go back once the GPU has finished with them; in no other sum. */
  cachalot_tune_stage stage; /**< The stage. */
  int32_t tuned;             /**< 1: the active settings are not the program's; otherwise 0. */
} cachalot_tune_report;

/** The report on a request that failed because memory ran out. */
typedef struct cachalot_oom_report {
  size_t struct_size;                    /**< The library's size: check the size before reading later fields. */
  const char *text;                      /**< The whole report as text, as cachalot_last_error will return it. */
  size_t requested_bytes;                /**< The requested bytes. */
  size_t block_bytes;                    /**< The length of the block that the request needs. */
  size_t segment_bytes;                  /**< The length of the segment that the driver could not provide. */
  uint64_t device_total_bytes;           /**< The device's memory; 0: unknown. */
  uint64_t device_free_bytes;            /**< The memory that no process uses. */
  uint64_t process_bytes;                /**< The memory that this process uses, in total; 0: unknown. */
  uint64_t limit_bytes;                  /**< The limit on reserved bytes, or CACHALOT_NO_LIMIT. */
  uint64_t allocated_bytes;              /**< Bytes of allocated blocks. */
  uint64_t reserved_bytes;               /**< Bytes of segments, without spare pages. */
  uint64_t pending_bytes;                /**< Bytes of freed blocks that other streams still use. */
  uint64_t private_free_bytes;           /**< Free bytes of private pools. */
  uint64_t largest_free_bytes;           /**< The largest free block of the request's stream and pool. */
  uint64_t largest_free_elsewhere_bytes; /**< The largest free block of other streams and pools. */
  int device;                            /**< The device. */
  int capturing;                         /**< 1: the stream captured a graph, so nothing was releasable; otherwise 0. */
  uint64_t spare_bytes;                  /**< Pages of virtual memory that could neither serve nor go back. */
  uint64_t pinned_bytes;                 /**< Pages of virtual memory that do not move. */
  uint64_t parked_bytes;                 /**< Parked memory: addresses without memory of the driver. In no other sum. */
  uint64_t tag;                          /**< The tag of the request's pool, if any tag has limits; 0: none. */
  uint64_t tag_bytes;                    /**< What the tag's pools hold: cachalot_get_tag_report. */
  uint64_t tag_max_bytes;                /**< The tag's limit; 0: none. */
  uint32_t tag_refused;                  /**< 1: the tag's limit refused the request, and not the device; otherwise 0. */
  uint32_t reserved;                     /**< 0. */
} cachalot_oom_report;

/** The kind of an event of a trace. */
typedef int32_t cachalot_action;
/** The values of cachalot_action. */
enum {
  CACHALOT_ACTION_ALLOC = 1,          /**< A block was allocated; `bytes` are the requested bytes. */
  CACHALOT_ACTION_FREE_REQUESTED = 2, /**< The program freed a block. */
  CACHALOT_ACTION_FREE_COMPLETED = 3, /**< A block became free. */
  CACHALOT_ACTION_SEGMENT_ALLOC = 4,  /**< A segment was allocated from the driver. */
  CACHALOT_ACTION_SEGMENT_FREE = 5,   /**< A segment is released to the driver. */
  CACHALOT_ACTION_SEGMENT_MAP = 6,    /**< A part of an expandable segment was mapped. */
  CACHALOT_ACTION_SEGMENT_UNMAP = 7,  /**< A part of an expandable segment is unmapped. */
  CACHALOT_ACTION_OOM = 8,            /**< A request failed; `address` is the number of the device's free bytes. */
  CACHALOT_ACTION_SETTINGS_CHANGED = 9,    /**< `tune:auto` activated settings; `bytes` is the predicted peak. */
  CACHALOT_ACTION_SETTINGS_TAKEN_BACK = 10 /**< `tune:auto` took settings back; `bytes` is the measured peak. */
};

/** An event of a trace. */
typedef struct cachalot_trace_entry {
  size_t struct_size;     /**< The size in the library's version. */
  uint64_t address;       /**< The address. */
  uint64_t bytes;         /**< The length. */
  uint64_t stream_id;     /**< The library's number of the stream, as in cachalot_block. */
  uint64_t time_us;       /**< The time, in microseconds since 1970. */
  cachalot_action action; /**< The kind of the event. */
  uint32_t reserved;      /**< 0. */
} cachalot_trace_entry;

/** A call stack that a callback describes. Valid until the callback returns. */
typedef struct cachalot_stack cachalot_stack;
/** Describes the calling thread's stack with cachalot_stack_push. `action` is CACHALOT_ACTION_ALLOC or
 * CACHALOT_ACTION_FREE_REQUESTED. */
typedef void (*cachalot_stack_callback)(void *userdata, cachalot_stack *stack, cachalot_action action);

/** The format of a snapshot. */
typedef int32_t cachalot_format;
/** The values of cachalot_format. */
enum {
  CACHALOT_JSON = 1,  /**< JSON, with lists in the place of tuples. */
  CACHALOT_PICKLE = 2 /**< Python's pickle, protocol 2, for torch's _memory_viz.py and pytorch.org/memory_viz. */
};

/** The options of cachalot_snapshot. */
typedef struct cachalot_snapshot_options {
  size_t struct_size;     /**< sizeof(cachalot_snapshot_options). */
  const char *path;       /**< The file that gets the snapshot; NULL: `write` gets it. */
  cachalot_format format; /**< The format. 0: a pickle for a file, unless its name ends in .json; otherwise JSON. */
  uint32_t reserved;      /**< 0. */
} cachalot_snapshot_options;

/** The state of a device. */
typedef struct cachalot_device_info {
  size_t struct_size;      /**< sizeof(cachalot_device_info). */
  uint64_t total_bytes;    /**< The device's memory. */
  uint64_t free_bytes;     /**< The memory that no process uses. */
  uint64_t process_bytes;  /**< The memory that this process uses, in total; 0: unknown. */
  uint64_t reserved_bytes; /**< Bytes of the allocator's segments. */
  uint64_t limit_bytes;    /**< The limit on reserved bytes, or CACHALOT_NO_LIMIT. */
  uint64_t leaked_bytes;   /**< Bytes whose release failed in the driver. */
  int ordinal;             /**< The driver's number of the device. */
  int simulated;           /**< 1: a simulated device; 0: a CUDA device. */
  int virtual_memory;      /**< 1: segments can be expandable; 0: they cannot. */
  uint32_t reserved;       /**< 0. */
} cachalot_device_info;

/* Initialisers: the size, and 0 for every other field. Generated: see tests/tests/initializers.rs. */
/** Initialises cachalot_options. */
#define CACHALOT_OPTIONS_INIT {sizeof(cachalot_options), 0, 0, NULL, NULL, NULL, 0, 0}
/** Initialises cachalot_block. */
#define CACHALOT_BLOCK_INIT {sizeof(cachalot_block), NULL, 0, 0, 0, NULL, 0, 0, 0}
/** Initialises cachalot_forecast. */
#define CACHALOT_FORECAST_INIT {sizeof(cachalot_forecast), NULL, 0, 0, 0}
/** Initialises cachalot_fit. */
#define CACHALOT_FIT_INIT {sizeof(cachalot_fit), 0, 0, 0, 0, 0, 0}
/** Initialises cachalot_page_statistics. */
#define CACHALOT_PAGE_STATISTICS_INIT                                                                                  \
  {sizeof(cachalot_page_statistics), 0, 0, 0, 0, 0, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, 0, \
   0, 0, 0}
/** Initialises cachalot_reclaim_statistics. */
#define CACHALOT_RECLAIM_STATISTICS_INIT {sizeof(cachalot_reclaim_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/** Initialises cachalot_park_target. */
#define CACHALOT_PARK_TARGET_INIT {sizeof(cachalot_park_target), 0, 0, 0, 0}
/** Initialises cachalot_park_options. */
#define CACHALOT_PARK_OPTIONS_INIT {sizeof(cachalot_park_options), 0, 0}
/** Initialises cachalot_park_report. */
#define CACHALOT_PARK_REPORT_INIT {sizeof(cachalot_park_report), 0, 0, 0, 0, 0, 0, 0, 0, 0}
/** Initialises cachalot_remaining_memory. */
#define CACHALOT_REMAINING_MEMORY_INIT {sizeof(cachalot_remaining_memory), 0, 0, 0, 0, 0, 0, 0, 0, 0}
/** Initialises cachalot_tag_limits. */
#define CACHALOT_TAG_LIMITS_INIT {sizeof(cachalot_tag_limits), 0, 0, 0, 0}
/** Initialises cachalot_tag_report. */
#define CACHALOT_TAG_REPORT_INIT {sizeof(cachalot_tag_report), 0, 0, 0, 0, 0, 0, 0, 0, 0}
/** Initialises cachalot_statistics. */
#define CACHALOT_STATISTICS_INIT                                                                                       \
  {sizeof(cachalot_statistics), {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0},    \
   {0, 0, 0, 0}, {0, 0, 0, 0}, 0, 0, 0, 0, 0}
/** Initialises cachalot_plan_report. */
#define CACHALOT_PLAN_REPORT_INIT {sizeof(cachalot_plan_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/** Initialises cachalot_buffer_plan. */
#define CACHALOT_BUFFER_PLAN_INIT {sizeof(cachalot_buffer_plan), 0, 0, 0, 0}
/** Initialises cachalot_tune_report. */
#define CACHALOT_TUNE_REPORT_INIT {sizeof(cachalot_tune_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/** Initialises cachalot_snapshot_options. */
#define CACHALOT_SNAPSHOT_OPTIONS_INIT {sizeof(cachalot_snapshot_options), NULL, 0, 0}
/** Initialises cachalot_device_info. */
#define CACHALOT_DEVICE_INFO_INIT {sizeof(cachalot_device_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* ---- The library ---- */

/** Returns the version of the library, in the form of CACHALOT_VERSION. */
CACHALOT_API uint32_t cachalot_version(void);

/** Returns the version of the library as a text, such as "1.2.3". The text is valid forever. */
CACHALOT_API const char *cachalot_version_string(void);

/** Returns the name of a status, such as "CACHALOT_ERROR_NULL", or "CACHALOT_ERROR_UNKNOWN" for other numbers. The
 * text is valid forever. */
CACHALOT_API const char *cachalot_status_name(cachalot_status status);

/** Returns the meaning of a status in a few words. The text is valid forever. */
CACHALOT_API const char *cachalot_status_text(cachalot_status status);

/** Returns the message of the calling thread's last failure, at most 4095 bytes; "" without a failure. For
 * CACHALOT_ERROR_OUT_OF_MEMORY, the message is the whole report. The text is valid until the thread's next failure or
 * the end of the thread. */
CACHALOT_API const char *cachalot_last_error(void);

/** Returns the driver's error code (a CUresult) of the calling thread's last failure; 0 if the driver was not
 * involved. */
CACHALOT_API uint32_t cachalot_last_driver_code(void);

/* ---- Allocators ---- */

/** Makes an allocator, and writes the handle to `out`. NULL as `options` means CACHALOT_OPTIONS_INIT. A process can
 * have 1024 allocators at a time. Memory is allocated later, when requests need it. A setting without effect is no
 * error: a line on the standard error stream names the key and the reason, once in a process.
 *   - Driver: loads and starts the driver, and retains a context on each device (0.1 s and more for the first
 *     context).
 *   - Errors: STRUCT_SIZE, INVALID_ARGUMENT, INVALID_CONFIG, UNKNOWN_DEVICE, NO_DRIVER, DRIVER_TOO_OLD,
 *     TABLE_FULL. */
CACHALOT_CHECKED cachalot_status cachalot_create(const cachalot_options *options, cachalot_allocator **out);

/** Destroys an allocator: waits for pending frees, releases the memory, then the contexts. Afterwards the handle is
 * invalid, whatever the status, except after BUSY and FORKED. NULL is allowed, and does nothing. No other call of the
 * allocator may be running. Blocks still allocated and pools with users keep their memory until the end of the
 * process, so that running work stays safe, and the status is STILL_HELD. A capture that was started and not ended keeps
 * memory, too.
 *   - Driver: yes, and waits for the device.
 *   - Errors: STILL_HELD, BUSY; POISONED, after which no memory is released. */
CACHALOT_API cachalot_status cachalot_destroy(cachalot_allocator *allocator);

/** Changes settings on every device, by PyTorch's rules: unless `config` names them, max_split_size_mb,
 * max_non_split_rounding_mb, garbage_collection_threshold and roundup_power2_divisions return to their defaults, and
 * all other settings keep their values. Blocks and segments do not change.
 *   - Driver: only if `config` has per_process_memory_fraction.
 *   - Errors: INVALID_CONFIG. */
CACHALOT_API cachalot_status cachalot_configure(const cachalot_allocator *allocator, const char *config);

/** Writes the active settings, "policy:caching" if there are none, with a final NUL, to the `capacity` bytes at `buffer`,
 * and the length without the NUL to `length`. Either pointer may be NULL; with a NULL buffer the capacity is 0, and the
 * call only returns the length.
 *   - Errors: BUFFER_TOO_SMALL. */
CACHALOT_API cachalot_status cachalot_get_config(const cachalot_allocator *allocator, int device, char *buffer,
                                                 size_t capacity, size_t *length);

/** Writes the number of devices to `out`. Devices are numbered from 0. */
CACHALOT_API cachalot_status cachalot_get_device_count(const cachalot_allocator *allocator, int *out);

/** Describes a device.
 *   - Driver: yes (about 5 us; the first call may load the management library, for some ms).
 *   - Errors: STRUCT_SIZE. */
CACHALOT_API cachalot_status cachalot_get_device_info(const cachalot_allocator *allocator, int device,
                                                      cachalot_device_info *out);

/** Returns CACHALOT_OK for a usable device, and otherwise the failure that lost the device, with the driver's code.
 *   - Driver: to find out whether the program has reset the device (about 0.1 us).
 *   - Errors: CONTEXT_LOST, SHUTDOWN. */
CACHALOT_API cachalot_status cachalot_check_health(const cachalot_allocator *allocator, int device);

/** Lets work on device `peer` access the memory of `device`, current and future. The access has one direction. A
 * repeated call is allowed.
 *   - Driver: yes.
 *   - Errors: UNSUPPORTED if the devices cannot reach each other. */
CACHALOT_API cachalot_status cachalot_enable_peer_access(const cachalot_allocator *allocator, int device, int peer);

/* ---- Memory ---- */

/** Allocates a block of at least `bytes` on `device`, usable on `stream` immediately, and writes the address to `out`.
 * The address is a multiple of 512, under `policy:bfc` of 256. For 0 bytes, the address is NULL.
 *   - Driver: if no cached block fits, or frees are pending; never for a cached block.
 *   - Errors: OUT_OF_MEMORY, REJECTED, TOO_LARGE, INVALID_STREAM (also for any stream but NULL with CACHALOT_HOST),
 *     TABLE_FULL. */
CACHALOT_CHECKED cachalot_status cachalot_malloc(const cachalot_allocator *allocator, int device, size_t bytes,
                                                 cachalot_stream stream, void **out);

/** Frees a block in the order of the block's stream: submit the last use before the call. NULL is allowed, and does
 * nothing.
 *   - Driver: records an event for each stream of cachalot_record_stream. Under "policy:direct", without a cache, and
 *     with "guard", "canary", "pattern" or "zero:on_free", a free calls the driver as well; otherwise never.
 *   - Errors: INVALID_POINTER (foreign address, address inside a block, block freed before), TABLE_FULL. After an
 *     error, the program still owns the block. */
CACHALOT_API cachalot_status cachalot_free(const cachalot_allocator *allocator, void *block);

/** Frees a block like cachalot_free, and checks that the program requested exactly `bytes`.
 *   - Errors: WRONG_SIZE, and the errors of cachalot_free. */
CACHALOT_API cachalot_status cachalot_free_sized(const cachalot_allocator *allocator, void *block, size_t bytes);

/** Frees a block once the safe frontier of its device has reached `count`. For programs that number their work 1, 2, 3 …
 * and do not order it by streams: a block that work 7 uses last is freed at 7. Until cachalot_set_safe_frontier declares 7
 * or a later number as done, the block is pending, and neither a shortage of memory nor cachalot_empty_cache makes it
 * available earlier. The block also waits for streams of cachalot_record_stream and cachalot_record_use, as with
 * cachalot_free. At a number that is done already, the call is cachalot_free. For a NULL block, it does nothing.
 *   - Driver, errors: as cachalot_free. */
CACHALOT_API cachalot_status cachalot_free_at(const cachalot_allocator *allocator, void *block, uint64_t count);

/** Declares all work of a device numbered up to `count` as done, and frees the blocks that wait for these numbers: see
 * cachalot_free_at. The frontier of a device starts at 0 and never goes back: a lower number changes nothing.
 *   - Driver: only if caching is off, to release memory.
 *   - Errors: UNKNOWN_DEVICE. */
CACHALOT_API cachalot_status cachalot_set_safe_frontier(const cachalot_allocator *allocator, int device,
                                                        uint64_t count);

/** Announces that submitted work on `stream` uses the block. After the free, the block stays pending until the work
 * is done. For the block's own stream, and for a NULL block, the call does nothing.
 *   - Driver: for a created stream, the call records an event, so that the program may destroy the stream before the
 *     free. With CACHALOT_STREAMS_REPORTED only while a graph is captured.
 *   - Errors: INVALID_POINTER, INVALID_STREAM, TABLE_FULL, and those of the driver. */
CACHALOT_API cachalot_status cachalot_record_stream(const cachalot_allocator *allocator, void *block,
                                                    cachalot_stream stream);

/** Announces that the work submitted to `stream` so far uses the block. Differs from cachalot_record_stream in when the
 * event is recorded: now, and not at the free. Work submitted to `stream` afterwards delays no reuse of the block. If a
 * request that no cached block fits would use the block before that work is done, the block's stream is ordered after
 * it, as by cudaStreamWaitEvent; the calling thread does not wait. If cachalot_record_stream announced a use of the
 * block as well, all its uses last until the free. For the block's own stream, and for a NULL block, the call does
 * nothing. A driver makes 4,096 events for this in a process, including those that the program makes for other
 * processes. Beyond them, the uses of one stream share an event, so that later work of the stream may delay a reuse; a use without any
 * event waits until it is complete, and its block serves no request until then. cachalot_empty_cache gives idle events back.
 *   - Driver: records an event. While a graph is captured, the use lasts until the free.
 *   - Errors: INVALID_POINTER, INVALID_STREAM, TABLE_FULL, and those of the driver. */
CACHALOT_API cachalot_status cachalot_record_use(const cachalot_allocator *allocator, void *block,
                                                 cachalot_stream stream);

/** Announces the end of a stream of `device`. Call it before cudaStreamDestroy; the stream's work may be unfinished.
 * Cached memory of the stream, on every device, returns to the driver. Blocks of the stream remain valid, and are
 * freed as usual; their memory returns to the driver before a later request allocates a segment. Captures that were
 * started for the stream (CACHALOT_ROUTE_STREAM) end. For
 * cudaStreamPerThread, the call announces the end of the calling thread. A thread that continues may use its stream
 * again. After CACHALOT_OK the stream has ended for the library, also if the driver fails to release memory: a later
 * request tries again. After an error it has not ended.
 *   - Driver: yes.
 *   - Errors: INVALID_STREAM, also for the legacy default stream, which never ends; TABLE_FULL; those of the driver. */
CACHALOT_API cachalot_status cachalot_stream_destroyed(const cachalot_allocator *allocator, int device,
                                                       cachalot_stream stream);

/** Announces, to an allocator with CACHALOT_STREAMS_REPORTED, a stream that may end without a report, because another
 * library made it. Streams with this handle are then treated as without the flag: see Streams. Call it before the first request
 * on the stream; repeated calls cost a look into a table.
 *   - Driver: no.
 *   - Errors: INVALID_STREAM, TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_stream_unreported(const cachalot_allocator *allocator, int device,
                                                        cachalot_stream stream);

/** Describes the block that contains `address`, which may be anywhere in the block.
 *   - Errors: INVALID_POINTER, STRUCT_SIZE. */
CACHALOT_API cachalot_status cachalot_get_block(const cachalot_allocator *allocator, const void *address,
                                                cachalot_block *out);

/** Explains an address at which a kernel has faulted, in English sentences: the block at or next to the address, who
 * has the block, the streams that were said to use it, and its call stacks as cachalot_on_stack describes them. The
 * text and its length are written as by cachalot_get_config. The library knows the blocks that the program holds or
 * that still wait for work, and under "guard" the blocks freed last, up to "quarantine" of them, with the addresses
 * around. Works after a fault has broken the context.
 *   - Errors: INVALID_POINTER, if nothing is known of the address; BUFFER_TOO_SMALL. */
CACHALOT_API cachalot_status cachalot_explain_address(const cachalot_allocator *allocator, const void *address,
                                                      char *buffer, size_t capacity, size_t *length);

/** Predicts the first step of cachalot_malloc with these arguments, under every policy, and changes nothing. A
 * predicted block is the block that cachalot_malloc would return. The prediction counts pending frees as pending,
 * and memory decommitted from ranges as in use, although cachalot_malloc would poll both. The answer of the driver to a request for memory is unknown in advance.
 * A guarded block ("guard") is reported as CACHALOT_WOULD_EXPAND, because pages are mapped for it.
 *   - Driver: only while a graph is captured, and to find out whether memory to be unmapped belongs to a capturing
 *     stream. With CACHALOT_OPEN_LATER, a device that was never used stays without a context.
 *   - Errors: TOO_LARGE, INVALID_STREAM, STRUCT_SIZE, TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_get_forecast(const cachalot_allocator *allocator, int device, size_t bytes,
                                                   cachalot_stream stream, cachalot_forecast *out);

/** Reports whether the `count` requests of `sizes` bytes on `stream` would be served if they were made now, one after
 * another, none of them freed, and changes nothing. The requests are made on a copy of the device's state by the
 * code of cachalot_malloc, so the answer is exact for the policy if no other call comes between. It assumes that no
 * pending free completes before a request would wait for it (cachalot_process_events finds out which have), that no
 * callback or other thread frees memory, and that new memory has higher addresses than all other memory. Free device
 * memory is that of the driver's latest answer, changed by what the allocator has obtained and given back since;
 * cachalot_get_device_info asks the driver anew. The copy takes about as long as a snapshot, and as much host memory as
 * the allocator's tables; other threads' calls for the device wait while it is made. What other threads are doing at
 * this moment counts as unfinished.
 *   - Driver: only while a graph is captured, to learn which streams capture it; of a device that was never used, with
 *     CACHALOT_OPEN_LATER, the size. All of it then counts as free, and no context is made.
 *   - Errors: TOO_LARGE, INVALID_STREAM, STRUCT_SIZE, TABLE_FULL, PARKED. */
CACHALOT_API cachalot_status cachalot_get_fit(const cachalot_allocator *allocator, int device, const size_t *sizes,
                                              size_t count, cachalot_stream stream, cachalot_fit *out);

/* ---- The cache ---- */

/** Makes a pending block available once its streams have finished. cachalot_malloc does the same by itself.
 *   - Driver: if frees are pending.
 *   - Errors: TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_process_events(const cachalot_allocator *allocator, int device);

/** Waits for pending frees, then releases every segment without blocks in use. Private pools with users keep their
 * segments, unless their tag has limits and no graph was captured into them. Under "policy:planned", plans
 * without a block in use end. If one release fails, the others still happen.
 *   - Driver: yes, and waits for the streams.
 *   - Errors: TABLE_FULL; CAPTURING if freed blocks wait for streams and a capture was started and not ended: the rest of
 *     the cache was released. */
CACHALOT_API cachalot_status cachalot_empty_cache(const cachalot_allocator *allocator, int device);

/** Releases segments without blocks in use, the largest first, until at most `keep_bytes` are reserved. Then, if more is
 * reserved, free memory of pools with users and plans, as for cachalot_empty_cache. Does not wait for pending frees.
 *   - Driver: if a segment is released.
 *   - Errors: TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_trim(const cachalot_allocator *allocator, int device, size_t keep_bytes);

/** Does the work that requests under `policy:stitched` have put off, for about `max_us` microseconds of the driver's time:
 * removes the mappings that moved pages have left, and returns memory beyond `slack` to the driver. Under
 * `reclaim:auto`, gives idle memory back to the driver by what it is worth. Writes 1 to `more` if the time is over and
 * something is left for another call, otherwise 0; `more` may be NULL. In other configurations, there is nothing to do.
 * Call it when the program is idle. It never waits for the device. Other threads may call the allocator.
 *   - Driver: yes, if there is something to do. */
CACHALOT_API cachalot_status cachalot_maintain(const cachalot_allocator *allocator, int device, uint64_t max_us,
                                               int *more);

/** Lets a thread of the library call cachalot_maintain for every device, with a pause of `interval_us` microseconds
 * between two rounds. Another call changes the pace; an interval of 0 ends the thread and waits for its end.
 * cachalot_destroy ends the thread, too.
 *   - Errors: BUSY if no thread can be started. */
CACHALOT_API cachalot_status cachalot_maintain_every(const cachalot_allocator *allocator, uint64_t interval_us,
                                                     uint64_t max_us);

/** Reports what cachalot_maintain has given back under `reclaim:auto`, and what it has kept and why. Without the setting,
 * all figures are 0.
 *   - Errors: STRUCT_SIZE. */
CACHALOT_API cachalot_status cachalot_get_reclaim_statistics(const cachalot_allocator *allocator, int device,
                                                             cachalot_reclaim_statistics *out);

/** Reports what the pages of virtual memory are used for, under `policy:stitched` and with expandable segments, and what
 * the driver calls for them have cost.
 *   - Errors: STRUCT_SIZE. */
CACHALOT_API cachalot_status cachalot_get_page_statistics(const cachalot_allocator *allocator, int device,
                                                          cachalot_page_statistics *out);

/** Lists the physical parts of a live block, in the order of addresses. They cover the block, which may be longer than
 * requested, and stay as they are while the block is live or pinned, until it is parked. A page keeps its number until it
 * returns to the driver. `count` holds the room at `extents` before the call, and the number of extents afterwards. With NULL for
 * `extents`, the call only counts. NULL as `block` has no extents.
 *   - Errors: INVALID_POINTER, unless the address is the first byte of a block; BUFFER_TOO_SMALL, TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_get_extents(const cachalot_allocator *allocator, const void *block,
                                                  cachalot_extent *extents, size_t *count);

/** Holds the memory under a live block in place. The pages under the block, or its ordinary segment, neither move nor
 * return to the driver before as many calls of cachalot_unpin, also if the block is freed earlier. After the free, other
 * blocks may use the memory. For memory registered with a network adapter, or with a library that uses the physical
 * memory directly. While memory is pinned, cachalot_destroy returns STILL_HELD. NULL is accepted, and does nothing.
 *   - Errors: INVALID_POINTER, unless the address is the first byte of a block; PARKED if a part of the block is parked,
 *     or about to be; TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_pin(const cachalot_allocator *allocator, const void *block);

/** Undoes one cachalot_pin of a block with this address, which may be freed by now. If blocks of different lengths were
 * pinned at the address, one after the other, the longest is unpinned last. NULL is accepted, and does nothing.
 *   - Driver: only for a guarded block that was freed (`guard`), which stays mapped until its last unpin.
 *   - Errors: NOT_PINNED. */
CACHALOT_API cachalot_status cachalot_unpin(const cachalot_allocator *allocator, const void *block);

/** Writes to `fd` a POSIX file descriptor of the page that contains `address`, any byte of pinned memory, whether its
 * block is live or freed: usually `block + extent.offset`, once for each extent. Another process that gets the
 * descriptor, for example over a Unix socket, imports it with cuMemImportFromShareableHandle, maps all
 * `extent.memory_bytes` of the page, and finds the bytes of the extent from `extent.memory_offset` on. Both processes
 * read and write the same memory, other blocks on the page included, so only share with trusted processes.
 *
 * The program owns the descriptor and closes it, at the latest when the other process has imported it. Each call makes
 * a new one. The descriptor and the other process are unknown to the library. While the other process uses the bytes,
 * keep the block, because its memory serves other requests after the free, and keep the pin, because the page moves to
 * other addresses, or returns to the driver, after cachalot_unpin. The driver keeps a returned page in use until the
 * other process has unmapped and released it, too.
 *   - Driver: yes, about 0.5 ms.
 *   - Errors: NOT_PINNED if no pinned memory contains the address; UNSUPPORTED for an ordinary segment, and if the device
 *     shares no memory between processes. */
CACHALOT_API cachalot_status cachalot_export_fd(const cachalot_allocator *allocator, const void *address, int *fd);

/** Turns the cache off (0) or on. While the cache is off, every request and every free goes to the driver. A request that
 * the driver or a limit refuses waits for pending blocks, and then releases what was cached before. Allocated blocks
 * stay valid. Under policy:direct the cache stays off. */
CACHALOT_API cachalot_status cachalot_set_caching(const cachalot_allocator *allocator, int device, int on);

/** Limits the reserved bytes of a device. CACHALOT_NO_LIMIT removes the limit, and 0 allows no segment. Segments
 * above a new limit stay: see cachalot_trim. */
CACHALOT_API cachalot_status cachalot_set_limit(const cachalot_allocator *allocator, int device, uint64_t bytes);

/** Limits the reserved bytes to a fraction of the device's memory, from 0 to 1; 1 removes the limit.
 *   - Driver: reads the size of the memory.
 *   - Errors: INVALID_FRACTION. */
CACHALOT_API cachalot_status cachalot_set_memory_fraction(const cachalot_allocator *allocator, int device,
                                                          double fraction);

/* ---- Plans ---- */

/** Announces the end of an iteration, such as a training step, and the start of the next.
 *
 * Under "policy:planned" the library observes an iteration: the sizes on each stream in order, and the end of each
 * block. A background thread computes a plan, within `plan_deadline_ms` (2000). The next announcement
 * activates the plan. A request that follows the sequence of its stream then gets its planned place in a segment, without a
 * search. The policy of `fallback` (caching by default) serves all other requests: blocks that outlive their
 * iteration, requests of another size or order, requests whose planned place is not free yet, requests routed to a
 * private pool, and requests during a capture. So a program that does not repeat itself still works.
 *
 * Streams share no bytes of a plan. A block of cachalot_record_stream keeps its bytes to the end of its iteration,
 * and longer until the other streams are done. If more than a quarter of the requests deviate in several iterations,
 * or several iterations have no request, the library gives the plan up, and observes again. Requests of other threads during the call belong to either
 * iteration. Under another policy the call does nothing.
 *   - Driver: polls pending frees. A plan that becomes active releases cached memory and allocates a segment for
 *     each stream; a plan that is given up releases the segments. If memory runs out, the plan waits for the next
 *     announcement. While a graph is captured, the driver is not called. */
CACHALOT_API cachalot_status cachalot_begin_iteration(const cachalot_allocator *allocator, int device);

/** Ends the active plans, and forgets what was observed and planned so far. The segment of each plan is released once
 * none of its blocks is in use; the blocks stay valid. The next cachalot_begin_iteration starts to observe again. Plans
 * also end by cachalot_empty_cache and cachalot_trim, if none of their blocks is in use.
 *   - Driver: if a segment is released.
 *   - Errors: TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_end_plans(const cachalot_allocator *allocator, int device);

/** Reports on the planned policy. Under another policy, the stage is CACHALOT_STAGE_WAITING and every count is 0. */
CACHALOT_API cachalot_status cachalot_get_plan_report(const cachalot_allocator *allocator, int device,
                                                      cachalot_plan_report *out);

/** Plans the memory of a program whose buffers are known in advance: writes an offset for each of the `count` buffers to
 * `offsets`, such that buffers that are live at the same step share no byte, and what is known about the plan to `out`.
 * A program needs one block of `peak_bytes`, and no other request. An alignment rounds offsets, and never `peak_bytes`: a
 * program that puts another region above rounds it up once. The algorithms run on `threads` threads (0, or
 * more than there are cores: one for each core), which end before the call returns, until a plan is proven optimal or `deadline_us` microseconds have
 * passed. A plan is found in any case: with a deadline of 0, by one fast algorithm. Which of several plans is found
 * depends on the timing of the threads. Needs no allocator, and no GPU.
 * Entries with CACHALOT_BUFFER_GAP follow their buffer: from `start` up to `end` the buffer needs only `bytes` of its bytes, from
 * its byte `offset` on, or none (`bytes` 0; `alignment` is 0). Other buffers are planned into gaps. The number in `offsets` is the
 * buffer's. Where the bytes of a gap begin above the first byte right after a time without all bytes, the bytes below are held,
 * too, and the plan is called optimal only if its peak is the lower bound.
 *   - Errors: NULL; STRUCT_SIZE; INVALID_ARGUMENT if a buffer has a mistake: cachalot_last_error gives the index of the
 *     buffer; PANIC. */
CACHALOT_CHECKED cachalot_status cachalot_plan_buffers(const cachalot_buffer *buffers, size_t count, uint32_t threads,
                                                       uint64_t deadline_us, uint64_t *offsets,
                                                       cachalot_buffer_plan *out);

/* ---- Settings that adjust themselves ---- */

/** Reports on `tune:auto`. The library records the latest requests, searches the settings of the caching policy in the
 * background, and activates the best at an idle moment: in cachalot_begin_iteration, in cachalot_maintain, and in the
 * upkeep of cachalot_maintain_every. Without any of these calls nothing changes. No settings change while a graph is
 * being captured. cachalot_get_config returns the active settings, and cachalot_configure ends those that were found.
 *
 * Settings become active if they save 2 % or more of the reserved memory of the recorded requests, and the
 * search does not see the later part of these requests. They are taken back if they save less than half of what was
 * predicted. Idle memory of the previous settings goes back to the driver, never during a request and without a wait
 * for the GPU. */
CACHALOT_API cachalot_status cachalot_get_tune_report(const cachalot_allocator *allocator, int device,
                                                      cachalot_tune_report *out);

/* ---- Private pools and graphs ---- */

/** Makes a private pool with the caller as its only user, and writes the name to `out`.
 *   - Errors: INVALID_ARGUMENT, TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_pool_create(const cachalot_allocator *allocator, int device, uint32_t flags,
                                                  cachalot_pool *out);

/** Adds a user to a pool. If no pool has this name, makes the pool with these flags; otherwise `flags` is ignored.
 *   - Errors: INVALID_ARGUMENT (flags, or the default pool), TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_pool_retain(const cachalot_allocator *allocator, int device, cachalot_pool pool,
                                                  uint32_t flags);

/** Removes a user from a pool. Memory of a pool without users is released with the rest of the cache, and the name
 * ends with the memory. A capture into a pool without users ends.
 *   - Errors: UNKNOWN_POOL. */
CACHALOT_API cachalot_status cachalot_pool_release(const cachalot_allocator *allocator, int device, cachalot_pool pool);

/** Writes the number of users of a pool to `out`.
 *   - Errors: UNKNOWN_POOL. */
CACHALOT_API cachalot_status cachalot_get_pool_users(const cachalot_allocator *allocator, int device,
                                                     cachalot_pool pool, uint32_t *out);

/** Waits for pending frees, then releases the free memory of a pool, with users or without.
 *   - Driver: yes, and waits for the streams.
 *   - Errors: UNKNOWN_POOL; STILL_HELD if the pool has users and a graph was captured into it, which may write to its
 *     memory: it stays. */
CACHALOT_API cachalot_status cachalot_pool_empty(const cachalot_allocator *allocator, int device, cachalot_pool pool);

/** Releases free memory of a pool, with users or without, until it holds at most `keep_bytes` or has none. Does not wait
 * for pending frees.
 *   - Driver: yes.
 *   - Errors: UNKNOWN_POOL; STILL_HELD as for cachalot_pool_empty, if the pool holds more; TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_pool_trim(const cachalot_allocator *allocator, int device, cachalot_pool pool,
                                                size_t keep_bytes);

/** Starts a route to a pool. The newest route that matches a request decides. The call adds a user to the pool, who
 * stays after cachalot_pool_end, until cachalot_pool_release. `stream` is read for CACHALOT_ROUTE_STREAM only.
 *   - Errors: UNKNOWN_POOL, INVALID_ARGUMENT, INVALID_STREAM, TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_pool_begin(const cachalot_allocator *allocator, int device, cachalot_pool pool,
                                                 cachalot_route route, cachalot_stream stream);

/** Ends the newest route to the pool that cachalot_pool_begin started.
 *   - Errors: UNKNOWN_POOL, NOT_ROUTED. */
CACHALOT_API cachalot_status cachalot_pool_end(const cachalot_allocator *allocator, int device, cachalot_pool pool);

/** Starts a route like cachalot_pool_begin, for the capture of a graph. Call it before the capture starts. A
 * later call is permitted if no other thread calls the library between the start of the capture and this call. The new
 * user of the pool is the graph: the program calls cachalot_pool_release after the destruction of the graph.
 *   - Errors: UNKNOWN_POOL, INVALID_ARGUMENT, INVALID_STREAM, TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_capture_begin(const cachalot_allocator *allocator, int device, cachalot_pool pool,
                                                    cachalot_route route, cachalot_stream stream);

/** Ends the route of a capture. Call it before or after cudaStreamEndCapture.
 *   - Errors: UNKNOWN_POOL, NOT_ROUTED. */
CACHALOT_API cachalot_status cachalot_capture_end(const cachalot_allocator *allocator, int device, cachalot_pool pool);

/* ---- Parking: memory that the program does not need for a while ---- */

/** Sets the tag under which the memory of a private pool is parked; 0 removes the tag. Several pools may have the same
 * tag. Set it before the first request: segments that the pool has already stay as they are. From then on, the pool's
 * segments are mapped, also under "policy:caching". Only mapped memory can be parked: under "policy:caching",
 * "policy:stitched", and "policy:bfc,expandable_segments:True".
 *   - Errors: UNKNOWN_POOL; PARKED if the pool, or another pool with the tag, is parked; NOT_PARKABLE under another
 *     policy, and if the program supplies the pool's segments; TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_pool_set_tag(const cachalot_allocator *allocator, int device, cachalot_pool pool,
                                                   uint64_t tag);

/** Parks the memory of a target: its memory goes back to the driver, with all that its pools only
 * cache. Addresses, blocks and captured graphs stay valid, and must not be used before
 * cachalot_wake. NULL as `options` means CACHALOT_PARK_OPTIONS_INIT: the contents are kept. Parked
 * blocks may be freed. A request that a route leads to a parked pool fails with PARKED (but see
 * cachalot_tag_serve_elsewhere), and so does cachalot_pin of a parked block. Pinned pages stay on
 * the device, and so do segments that a pool had before its tag or while its segments were not
 * cached, pages with a block that is lent to another stream, and pages with a block that
 * cachalot_free_at freed at a number not reached yet. What stays on the device keeps its contents in
 * every mode. If the memory is parked, the call parks the pages that an earlier call left on the
 * device: after a failure, or because they were pinned then. It does nothing if there are none.
 *
 * The call waits once for the work that `order` says. Requests and frees of other memory do not wait
 * for the call. Statistics count parked blocks as allocated, and their memory not as reserved.
 *   - Driver: yes. Contents are copied to pinned host memory. Recording an event of the whole context
 *     breaks a capture that cachalot_capture_begin did not announce.
 *   - Errors: STRUCT_SIZE, INVALID_ARGUMENT, UNKNOWN_TAG, INVALID_STREAM, CAPTURING, NOT_PARKABLE
 *     (another call parks or wakes, no virtual memory, no memory that is mapped or would be, too
 *     little host memory), those of the driver. Everything is awake then, with two exceptions. If the
 *     call fails in the middle, and what was parked by then cannot be mapped again, since the driver
 *     fails or other requests have taken the memory, that part stays parked, with its contents.
 *     Without contents to be kept, what the driver can unmap stays parked. Another call parks the
 *     rest. */
CACHALOT_CHECKED cachalot_status cachalot_park(const cachalot_allocator *allocator, int device,
                                               const cachalot_park_target *target,
                                               const cachalot_park_options *options);

/** Wakes the memory of a target, at the same addresses. The contents are there when the call
 * returns, for work on every stream. What was freed while it was parked, and belongs to no pool in
 * use, does not wake. If the memory is awake, the call does nothing.
 *   - Driver: yes.
 *   - Errors: STRUCT_SIZE, INVALID_ARGUMENT, UNKNOWN_TAG, INVALID_STREAM, NOT_PARKABLE, those of the
 *     driver; OUT_OF_MEMORY if the device does not have the memory, also after all cached memory was
 *     released. Everything is parked then, and no contents are lost. Pages that the driver fails to
 *     unmap stay on the device for the next call. */
CACHALOT_CHECKED cachalot_status cachalot_wake(const cachalot_allocator *allocator, int device,
                                               const cachalot_park_target *target);

/** Starts to wake the memory of a target: maps the memory, and starts to copy the contents. Targets
 * wake in the order of these calls. The memory must not be used before cachalot_wake_wait has
 * returned.
 *   - Driver: yes, and waits for no copy.
 *   - Errors: those of cachalot_wake. */
CACHALOT_CHECKED cachalot_status cachalot_wake_start(const cachalot_allocator *allocator, int device,
                                                     const cachalot_park_target *target);

/** Waits until the contents of a target are there. Starts to wake the memory if cachalot_wake_start
 * did not.
 *   - Driver, Errors: those of cachalot_wake. */
CACHALOT_CHECKED cachalot_status cachalot_wake_wait(const cachalot_allocator *allocator, int device,
                                                    const cachalot_park_target *target);

/** Writes to `out` where the memory of a target is.
 *   - Driver: only to identify a stream, with CACHALOT_ASK_STREAM_ID.
 *   - Errors: STRUCT_SIZE, INVALID_ARGUMENT, UNKNOWN_TAG, INVALID_STREAM. */
CACHALOT_API cachalot_status cachalot_get_park_report(const cachalot_allocator *allocator, int device,
                                                      const cachalot_park_target *target, cachalot_park_report *out);

/** Writes to `out` what is on a device, by name: after everything was parked, this is what remains.
 *   - Driver: yes, to learn the free memory.
 *   - Errors: STRUCT_SIZE, those of the driver. */
CACHALOT_API cachalot_status cachalot_get_remaining_memory(const cachalot_allocator *allocator, int device,
                                                           cachalot_remaining_memory *out);

/** Sets whether the default pool serves requests for pools with the tag while they are parked (1), or whether they fail
 * with PARKED (0, the default). Requests of a capture fail in both cases.
 *   - Errors: UNKNOWN_TAG, INVALID_ARGUMENT. */
CACHALOT_API cachalot_status cachalot_tag_serve_elsewhere(const cachalot_allocator *allocator, int device, uint64_t tag,
                                                          int on);

/** Sets how many bytes of pinned host memory stay after parked memory has woken, for the next park; the default is 0.
 * Pinning new memory takes some 50 ms for each GiB. The call releases what exceeds the number.
 *   - Driver: if memory is released. */
CACHALOT_API cachalot_status cachalot_retain_host_memory(const cachalot_allocator *allocator, int device,
                                                         uint64_t host_bytes);

/* ---- Tenants: tags with limits ---- */

/** Sets the limits of all private pools with a tag, present and future; NULL removes the limits. cachalot_pool_set_tag
 * gives pools their tags.
 *   - `max_bytes`: where a pool would have to grow beyond it for a request, free memory of the tag goes back first. If
 * that does not suffice, the request is OUT_OF_MEMORY, without a call of the driver, and the memory of others stays. A
 * lower limit gives nothing back by itself, and parked memory wakes despite it.
 *   - `low_bytes` and `weight`: where memory is short, free memory goes back from the tag that holds the most above
 *     `low_bytes`, divided by the weight. Memory without a tag of limits counts as a tag with 0 and 100. `low_bytes`
 * reserves nothing.
 *   - `clear`: other pools never see what was in a page.
 *
 * Pools with limits give free memory back while they are in use, as no other private pools do, unless a graph was
 * captured into them: for requests, and for cachalot_trim and cachalot_empty_cache; for `reclaim:auto` down to
 * `low_bytes`. CACHALOT_POOL_USE_ON_OOM has no effect on them.
 *   - Errors: STRUCT_SIZE, INVALID_ARGUMENT (the tag is 0, `low_bytes` is above `max_bytes`, `clear` is not 0 or 1),
 *     TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_tag_set_limits(const cachalot_allocator *allocator, int device, uint64_t tag,
                                                     const cachalot_tag_limits *limits);

/** Releases free memory of the pools with a tag, with limits or without, until they hold at most `keep_bytes` together or
 * have none. Does not wait for pending frees. `low_bytes` does not hold it up.
 *   - Driver: yes.
 *   - Errors: UNKNOWN_TAG; INVALID_ARGUMENT if the tag is 0; STILL_HELD if they hold more, and a graph was captured into one
 *     of them that has users; TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_tag_trim(const cachalot_allocator *allocator, int device, uint64_t tag,
                                               size_t keep_bytes);

/** Writes to `out` what the pools of a tag hold. While threads allocate, the figures may disagree slightly.
 *   - Errors: STRUCT_SIZE, INVALID_ARGUMENT, UNKNOWN_TAG if no pool has the tag and it has no limits. */
CACHALOT_API cachalot_status cachalot_get_tag_report(const cachalot_allocator *allocator, int device, uint64_t tag,
                                                     cachalot_tag_report *out);

/* ---- Elastic ranges ---- */

/** Reserves addresses for `max_bytes`, rounded up to whole pages, and writes the range to `out`. No device memory is
 * used yet.
 *
 * A range is for a table or a KV cache that grows in place: the program commits parts, uses them, and decommits them.
 * The memory comes from the pages of the allocator, under every policy, and counts against the same limit. Under
 * "policy:stitched", pages move between blocks and ranges without a driver call that allocates. In the statistics, a
 * range counts as a block and a segment, and its committed bytes as allocated.
 * If the driver has no addresses left, cached memory and released ranges give theirs back first; then the host may wait
 * for the device. A process has 128 TiB of addresses for all devices: the statistic `pages.reserved_address_bytes` says
 * how many the allocator has reserved, and "expandable_segments_reserve" how many each stream reserves.
 *   - Driver: yes.
 *   - Errors: INVALID_ARGUMENT (0 bytes), TOO_LARGE, TABLE_FULL; OUT_OF_MEMORY if there are still too few addresses;
 *     UNSUPPORTED if the device has no virtual memory. */
CACHALOT_CHECKED cachalot_status cachalot_range_reserve(const cachalot_allocator *allocator, int device,
                                                        size_t max_bytes, cachalot_range *out);

/** Commits `bytes` bytes of a range from `offset` on: they get memory. Pages that have memory keep it, with the contents. Work
 * submitted to `stream` after the call may use the part. After a failure, the range is as it was.
 *
 * `offset` and `bytes` must be multiples of `page_bytes`, as for cuMemMap. The host does not wait for the device, with
 * two exceptions: memory would run out otherwise; or the addresses were decommitted, their page serves others already,
 * and the work before the decommit is unfinished. While a graph is captured, a commit only gets memory that no work
 * uses any more. Addresses that the driver has failed to unmap are never used again: a commit of them fails with the
 * driver's error, and other parts of the range can be committed.
 *   - Driver: if a part has no memory.
 *   - Errors: OUT_OF_MEMORY, after the release of all memory that can be released; UNKNOWN_RANGE; INVALID_ARGUMENT (the
 *     part is not made of whole pages of the range); INVALID_STREAM; TABLE_FULL; CAPTURING while a graph is captured, if
 *     the addresses were decommitted and the work before the decommit is unfinished. */
CACHALOT_CHECKED cachalot_status cachalot_range_commit(cachalot_range range, size_t offset, size_t bytes,
                                                       cachalot_stream stream);

/** Gives up the memory of a part, after the work submitted to `stream` so far. Work of other streams that uses the
 * part must precede that work. From then on, others may use the memory after that work. The mapping is removed later;
 * the host never waits. Pages of the part without memory stay so.
 *
 * The rules for `offset` and `bytes` are those of cachalot_range_commit. A commit may have used physical pages longer
 * than `page_bytes`, but never longer than the commit: the memory of such a page is given up with its last part.
 *   - Driver: if a part has memory.
 *   - Errors: UNKNOWN_RANGE, INVALID_ARGUMENT, INVALID_STREAM, TABLE_FULL; CAPTURING while a graph is captured. The
 *     range is then as it was. */
CACHALOT_API cachalot_status cachalot_range_decommit(cachalot_range range, size_t offset, size_t bytes,
                                                     cachalot_stream stream);

/** Releases a range: gives up all its memory, after the work submitted so far to every stream that a commit or a
 * decommit of the range has named. Of several such streams, one waits for the others. The addresses are released once
 * that work is done; the host waits only for a stream that may be gone: see Streams.
 *   - Driver: yes.
 *   - Errors: UNKNOWN_RANGE, TABLE_FULL; CAPTURING while a graph is captured. The program then still has the
 *     range. */
CACHALOT_API cachalot_status cachalot_range_release(cachalot_range range);

/* ---- Statistics ---- */

/** Reads the statistics of a device. While other threads allocate and free, the numbers belong to slightly different
 * moments, and a peak may miss a call that is still under way; after the call has returned, the peak is exact.
 *   - Errors: STRUCT_SIZE. */
CACHALOT_API cachalot_status cachalot_get_statistics(const cachalot_allocator *allocator, int device,
                                                     cachalot_statistics *out);

/** Reads a statistic by name: a flattened name of torch.cuda.memory_stats(), such as "reserved_bytes.all.peak", or a name
 * of docs/statistics.md, such as "pages.moved_bytes".
 *   - Errors: UNKNOWN_KEY. */
CACHALOT_API cachalot_status cachalot_find_statistic(const cachalot_allocator *allocator, int device, const char *key,
                                                     int64_t *out);

/** Calls `visit` with the name and the value of every statistic of cachalot_find_statistic, in a fixed order.
 *   - Errors: STOPPED. */
CACHALOT_API cachalot_status cachalot_visit_statistics(const cachalot_allocator *allocator, int device,
                                                       cachalot_statistic_visitor visit, void *userdata);

/** Sets every peak to the current value. */
CACHALOT_API cachalot_status cachalot_reset_peaks(const cachalot_allocator *allocator, int device);

/** Sets the accumulated statistics (`allocated` and `freed`) and the counts of events to 0. */
CACHALOT_API cachalot_status cachalot_reset_accumulated(const cachalot_allocator *allocator, int device);

/** Writes the metrics of every device as OpenMetrics 1.0 text: the version, the active settings, the GPU's UUID, memory
 * in total and by pool and stream, peaks, totals, limits. Every family has its type and help, and a unit unless it is an
 * `info`. The text is that of `cachalot export --to openmetrics`, and more. `write` gets parts of up to 64 KiB. Heaps are
 * read in turn and every block is visited, so the call takes about as long as a snapshot without its history. Its media type is
 * "application/openmetrics-text; version=1.0.0; charset=utf-8".
 *   - Errors: STOPPED. */
CACHALOT_API cachalot_status cachalot_write_metrics(const cachalot_allocator *allocator, cachalot_writer write,
                                                    void *userdata);

/* ---- Callbacks ---- */

/** Sets the callback that frees memory before a segment is allocated; NULL removes the callback. A call under way on
 * another thread may still run the previous callback. Threads lists the rules for callbacks. */
CACHALOT_API cachalot_status cachalot_on_shortage(const cachalot_allocator *allocator,
                                                  cachalot_shortage_callback callback, void *userdata);

/** Sets the callback that learns of a request about to fail because memory ran out; NULL removes the callback. The
 * rules of cachalot_on_shortage apply. */
CACHALOT_API cachalot_status cachalot_on_out_of_memory(const cachalot_allocator *allocator,
                                                       cachalot_oom_callback callback, void *userdata);

/** Sets the callback that learns of every page of virtual memory that is mapped, before a block there is handed out, or
 * before parked blocks there wake; NULL removes the callback. A page that moves is mapped at its new place first, and
 * unmapped at the old one later. The callback runs on any thread that allocates, wakes memory, or calls
 * cachalot_maintain. Ordinary segments are not mapped. The rules of cachalot_on_shortage apply. */
CACHALOT_API cachalot_status cachalot_on_map(const cachalot_allocator *allocator, cachalot_mapping_callback callback,
                                             void *userdata);

/** Sets the callback that learns of every page that is about to be unmapped, with the address and bytes of
 * cachalot_on_map; NULL removes the callback. No work uses the addresses. No block is there, except blocks that
 * cachalot_park is parking. If the driver then fails to unmap the page, the addresses are never used again; but a page
 * that a failed cachalot_park or cachalot_wake leaves mapped stays in use, and cachalot_on_map learns of it once more.
 * The callback also runs in cachalot_destroy, where calls of the allocator fail. The rules of cachalot_on_shortage
 * apply. */
CACHALOT_API cachalot_status cachalot_on_unmap(const cachalot_allocator *allocator, cachalot_mapping_callback callback,
                                               void *userdata);

/** Sets the callback that describes call stacks of recorded events; NULL removes the callback. While a trace is
 * recorded, the callback runs once for each request and once for each free, on the calling thread and before any lock
 * is taken. A request without frames has no stack. A free without frames has the stack of the request. Each different
 * stack is stored once, until the allocator is destroyed: at most 262,144 stacks, and 256 MiB of names. The rules of
 * cachalot_on_shortage apply. */
CACHALOT_API cachalot_status cachalot_on_stack(const cachalot_allocator *allocator, cachalot_stack_callback callback,
                                               void *userdata);

/** Adds the next frame to a stack, from the innermost outwards. Call it in the callback of cachalot_on_stack only,
 * with the callback's stack. The texts are copied; NULL means "". A stack has at most 1024 frames; more calls have
 * no effect. */
CACHALOT_API void cachalot_stack_push(cachalot_stack *stack, const char *function_name, const char *file_name,
                                      int line);

/* ---- Inspection ---- */

/** Records the latest `capacity` events of a device; 0 stops the recording. Events recorded before are dropped. An
 * event takes 40 bytes, and every 32nd event takes a lock. While more than 16 streams and pools are busy at the same
 * time, the trace may hold a few hundred events less, because an event is kept only together with all later events.
 * Snapshots say under `allocator_settings`, as PyTorch's do, how many events the largest trace keeps
 * (`trace_alloc_max_entries`), and whether the first ones were dropped (`trace_alloc_overflowed`).
 *   - Errors: TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_trace_start(const cachalot_allocator *allocator, int device, size_t capacity);

/** Calls `visit` with every recorded event, oldest first.
 *   - Errors: STOPPED. */
CACHALOT_API cachalot_status cachalot_visit_trace(const cachalot_allocator *allocator, int device,
                                                  cachalot_trace_visitor visit, void *userdata);

/** Takes a snapshot: every segment and block, the traces and the settings, with the keys of
 * torch.cuda.memory._snapshot(). The snapshot goes to the file that `options` names, or else to
 * `write`, in parts of up to 64 KiB. NULL as `options` means CACHALOT_SNAPSHOT_OPTIONS_INIT. A pickle
 * has each stack once, JSON has the stack at each event. Heaps are read in turn, so an exact picture
 * needs a program at rest.
 *
 * A regular file is replaced in one step after the snapshot is complete, and keeps its permissions.
 * Symbolic links are followed. A device or a FIFO is written, and never replaced.
 *   - Errors: STRUCT_SIZE; INVALID_ARGUMENT, also if there are both a path and `write`; STOPPED; IO: a
 *     regular file is then unchanged. */
CACHALOT_API cachalot_status cachalot_snapshot(const cachalot_allocator *allocator,
                                               const cachalot_snapshot_options *options, cachalot_writer write,
                                               void *userdata);

/** Checks every invariant of every heap, for tests. The check visits every block. CACHALOT_ERROR_PANIC names a broken
 * invariant, and does not poison the allocator. */
CACHALOT_API cachalot_status cachalot_check_invariants(const cachalot_allocator *allocator);

#ifdef CACHALOT_EXPERIMENTAL
/* ---- Simulated devices ---- */

/** Completes the submitted work of a simulated device's stream. Without the call, work completes only when the
 * allocator waits for the stream.
 *   - Errors: INVALID_STREAM; UNSUPPORTED on CUDA devices. */
CACHALOT_API cachalot_status cachalot_simulate_progress(const cachalot_allocator *allocator, int device,
                                                        cachalot_stream stream);

/** Starts (not 0) or ends (0) the capture of a graph on a simulated device's stream.
 *   - Errors: INVALID_STREAM; UNSUPPORTED on CUDA devices. */
CACHALOT_API cachalot_status cachalot_simulate_capture(const cachalot_allocator *allocator, int device,
                                                       cachalot_stream stream, int on);
#endif

#ifdef __cplusplus
}
#endif

#endif
