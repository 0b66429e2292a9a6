/**
 * @file cachalot/parking.h
 * Memory that the program does not need for a while: it goes back to the driver, and wakes at the
 * same addresses, with its contents.
 */
#include "../cachalot.h" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_PARKING_H
#define CACHALOT_PARKING_H

#ifdef __cplusplus
extern "C" {
#endif

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
/** Initialises cachalot_park_target. */
#define CACHALOT_PARK_TARGET_INIT {sizeof(cachalot_park_target), 0, NULL, 0, 0}

/** The contents of parked memory when it wakes. */
typedef int32_t cachalot_park_mode;
/** The values of cachalot_park_mode. */
enum {
  CACHALOT_PARK_KEEP = 0, /**< What it contained before. The host keeps a copy. */
  CACHALOT_PARK_DROP = 1, /**< Undefined contents. */
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
/** Initialises cachalot_park_options. */
#define CACHALOT_PARK_OPTIONS_INIT {sizeof(cachalot_park_options), 0, 0}

/** Parks the memory of a target: its memory goes back to the driver, together with everything that
 * its pools only cache. Addresses, blocks and captured graphs stay valid, but must not be used
 * before cachalot_wake. NULL as `options` means CACHALOT_PARK_OPTIONS_INIT: the contents are kept.
 * Parked blocks may be freed. A request that a route leads to a parked pool fails with PARKED (but
 * see cachalot_tag_set_fallback), and so does cachalot_pin of a parked block. Pinned pages stay on
 * the device, and so do segments that a pool had before its tag or while its segments were not
 * cached, pages with a block that is lent to another stream, and pages with a block of
 * cachalot_free_at that still waits for its number. Memory of the host (`spill`) stays where it is,
 * without a copy. What stays keeps its contents in every mode. If the memory is already parked, the call parks the pages that an earlier call left
 * on the device, after a failure or because they were pinned then, or does nothing.
 *
 * The call waits once for the work that `order` says. Requests and frees of other memory do not
 * wait for the call. Statistics count parked blocks as allocated, and their memory not as reserved.
 *   - Driver: yes. Contents are copied to pinned host memory. Recording an event of the whole
 *     context breaks a capture that cachalot_capture_begin did not announce.
 *   - Errors: STRUCT_SIZE, INVALID_ARGUMENT, UNKNOWN_TAG, INVALID_STREAM, CAPTURING, NOT_PARKABLE
 *     (another call parks or wakes, no virtual memory, no memory that is mapped or would be, too
 *     little host memory), those of the driver. Everything is awake then, with two exceptions. If
 *     the call fails in the middle, a part is parked that perhaps cannot be mapped again, because
 *     the driver fails or other requests have taken the memory: that part stays parked, with its
 *     contents. If no contents are kept, what the driver can unmap stays parked. Another call parks
 *     the rest. */
CACHALOT_CHECKED cachalot_status cachalot_park(const cachalot_allocator *allocator, int device,
                                               const cachalot_park_target *target,
                                               const cachalot_park_options *options);

/** Wakes the memory of a target, at the same addresses. The contents are there when the call
 * returns, for work on every stream. Memory that was freed while it was parked, and belongs to no
 * pool in use, does not wake. If the memory is awake, the call does nothing.
 *   - Driver: yes.
 *   - Errors: STRUCT_SIZE, INVALID_ARGUMENT, UNKNOWN_TAG, INVALID_STREAM, NOT_PARKABLE, those of
 *     the driver; OUT_OF_MEMORY if the device does not have the memory, even after all cached
 *     memory was released. Everything is parked then, and no contents are lost. Pages that the
 *     driver fails to unmap stay on the device for the next call. */
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

/** The state of memory that can be parked. */
typedef int32_t cachalot_park_state;
/** The values of cachalot_park_state. */
enum {
  CACHALOT_AWAKE = 1,  /**< On the device. */
  CACHALOT_ASLEEP = 2, /**< Parked. */
  CACHALOT_WAKING = 3, /**< Between cachalot_wake_start and cachalot_wake_wait. */
  CACHALOT_LENT = 4    /**< On the device, except for free pages that others have taken; see cachalot_pool_lend. */
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
/** Initialises cachalot_park_report. */
#define CACHALOT_PARK_REPORT_INIT {sizeof(cachalot_park_report), 0, 0, 0, 0, 0, 0, 0, 0, 0}

/** Writes to `out` where the memory of a target is.
 *   - Driver: only to identify a stream, with CACHALOT_ASK_STREAM_ID.
 *   - Errors: STRUCT_SIZE, INVALID_ARGUMENT, UNKNOWN_TAG, INVALID_STREAM. */
CACHALOT_API cachalot_status cachalot_get_park_report(const cachalot_allocator *allocator, int device,
                                                      const cachalot_park_target *target, cachalot_park_report *out);

/** Lends the pages of the free blocks of a private pool, until cachalot_pool_reclaim. This is for
 * the pool of a captured graph, which needs the memory of its free blocks only while the graph
 * runs. A request elsewhere that needs memory of the driver takes lent pages first. Addresses stay,
 * the contents of free blocks are lost, and live blocks keep both. Blocks may be freed: their pages
 * are not lent before the next call. A request in the pool fails with PARKED, and no graph that was
 * captured into it may run. Does nothing if the pool lends already. The pool must be on pages:
 * under "policy:stitched", with "expandable_segments:True", or with a tag.
 *
 * No page leaves before the present work on the streams of the pool's blocks, and on those of
 * cachalot_pool_reclaim, is complete. The request that takes the first page waits for this work.
 * The call waits for the device only if no cachalot_pool_reclaim has named a stream since the
 * pool's first request.
 *   - Driver: yes, but nothing is mapped or unmapped. Waits while another thread parks, wakes, lends
 *     or reclaims memory.
 *   - Errors: UNKNOWN_POOL; NOT_PARKABLE (ordinary segments, no virtual memory, another call takes
 *     long); PARKED if the pool is parked; CAPTURING; those of the driver. Nothing is lent then. */
CACHALOT_CHECKED cachalot_status cachalot_pool_lend(const cachalot_allocator *allocator, int device,
                                                    cachalot_pool pool);

/** Brings lent memory back: maps pages where others have taken them, with undefined contents, and
 * lets the pool serve requests. Spare pages come first, then pages that other pools lend, then free
 * pages of the caches, then new ones. Call it before every launch of a graph that was captured into
 * the pool, with the stream of the launch, whether or not the pool is lent: the next
 * cachalot_pool_lend then knows which work to follow. If an earlier call named another stream,
 * `stream` is ordered after its work. Waits for the work of others in the pages that come back.
 *   - Driver: if pages were taken, or another stream was named before.
 *   - Errors: UNKNOWN_POOL, INVALID_STREAM; NOT_PARKABLE (no virtual memory, another call takes
 *     long); PARKED if the pool is parked; OUT_OF_MEMORY if the device does not have the memory,
 *     even after all cached memory was released; those of the driver. The pool is lent as before,
 *     and no graph may run before another call has succeeded. */
CACHALOT_CHECKED cachalot_status cachalot_pool_reclaim(const cachalot_allocator *allocator, int device,
                                                       cachalot_pool pool, cachalot_stream stream);

/** Lends the pages of the free blocks of all pools with a tag, as cachalot_pool_lend does.
 *   - Driver, Errors: those of cachalot_pool_lend, with UNKNOWN_TAG in place of UNKNOWN_POOL;
 *     INVALID_ARGUMENT if the tag is 0. */
CACHALOT_CHECKED cachalot_status cachalot_tag_lend(const cachalot_allocator *allocator, int device, uint64_t tag);

/** Brings the lent memory of all pools with a tag back, as cachalot_pool_reclaim does.
 *   - Driver, Errors: those of cachalot_pool_reclaim, with UNKNOWN_TAG in place of UNKNOWN_POOL;
 *     INVALID_ARGUMENT if the tag is 0. */
CACHALOT_CHECKED cachalot_status cachalot_tag_reclaim(const cachalot_allocator *allocator, int device, uint64_t tag,
                                                      cachalot_stream stream);

/** Sets whether the default pool serves requests for pools with the tag while they are parked (1),
 * or whether they fail with PARKED (0, the default). Requests of a capture fail in both cases.
 *   - Errors: UNKNOWN_TAG, INVALID_ARGUMENT. */
CACHALOT_API cachalot_status cachalot_tag_set_fallback(const cachalot_allocator *allocator, int device, uint64_t tag,
                                                       int on);

/** Sets how many bytes of pinned host memory stay after parked memory has woken, for the next park;
 * the default is 0. Pinning new memory takes some 50 ms for each GiB. The call releases what
 * exceeds the number.
 *   - Driver: if memory is released. */
CACHALOT_API cachalot_status cachalot_retain_host_memory(const cachalot_allocator *allocator, int device,
                                                         uint64_t host_bytes);

/** The memory of a device in use, by name; see cachalot_get_remaining_memory. The next six
 * fields together are `used_bytes`, and `spilled_bytes` in addition. */
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
  uint64_t spilled_bytes; /**< Memory of the host (`spill`): part of blocks, pending and cached memory. */
} cachalot_remaining_memory;
/** Initialises cachalot_remaining_memory. */
#define CACHALOT_REMAINING_MEMORY_INIT {sizeof(cachalot_remaining_memory), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/** Writes to `out` what is on a device, by name: after everything was parked, this is what remains.
 *   - Driver: yes, to learn the free memory.
 *   - Errors: STRUCT_SIZE, those of the driver. */
CACHALOT_API cachalot_status cachalot_get_remaining_memory(const cachalot_allocator *allocator, int device,
                                                           cachalot_remaining_memory *out);

#ifdef __cplusplus
}
#endif

#endif
