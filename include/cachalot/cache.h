/**
 * @file cachalot/cache.h
 * The memory that the allocator holds from the driver: its release, its limits, its upkeep, and
 * what happens when memory is short.
 */
#include "../cachalot.h" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_CACHE_H
#define CACHALOT_CACHE_H

#ifdef __cplusplus
extern "C" {
#endif

/** Makes pending blocks available if their streams have finished. cachalot_malloc does this, too.
 *   - Driver: if frees are pending.
 *   - Errors: TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_process_events(const cachalot_allocator *allocator, int device);

/** Waits for pending frees, then releases every segment without blocks in use. Private pools with
 * users keep their segments, unless their tag has limits and no graph was captured into them. Under
 * "policy:planned", plans without a block in use end. If one release fails, the others still
 * happen.
 *   - Driver: yes, and waits for the streams.
 *   - Errors: TABLE_FULL; CAPTURING if freed blocks wait for streams and a capture was started and
 *     not ended: the rest of the cache was released. */
CACHALOT_API cachalot_status cachalot_empty_cache(const cachalot_allocator *allocator, int device);

/** Releases segments without blocks in use, the largest first, until at most `keep_bytes` are
 * reserved. If more is still reserved, releases free memory of pools with users, and of plans,
 * under the conditions of cachalot_empty_cache. Does not wait for pending frees.
 *   - Driver: if a segment is released.
 *   - Errors: TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_trim(const cachalot_allocator *allocator, int device, size_t keep_bytes);

/** Holds the frees of the driver off, until as many calls of cachalot_hold_end. For the time between
 * the launches of a collective over several devices, and for functions that a stream calls on the
 * host: there the driver's own free waits for work that waits for the caller. Meanwhile no function
 * of the allocator waits for the device or releases memory to the driver, in any thread. A request
 * grows the cache, and fails with OUT_OF_MEMORY where it would have waited or released memory.
 * Freed blocks serve their own stream at once; those that other streams have used serve again after
 * the hold. cachalot_trim and cachalot_maintain do nothing, and what has to wait fails with
 * CAPTURING, as while a graph is captured.
 *   - Driver: no. */
CACHALOT_API cachalot_status cachalot_hold_begin(const cachalot_allocator *allocator, int device);

/** Ends a hold. Releases nothing by itself.
 *   - Driver: no.
 *   - Errors: INVALID_ARGUMENT if there is no hold. */
CACHALOT_API cachalot_status cachalot_hold_end(const cachalot_allocator *allocator, int device);

/** Turns the cache off (0) or on. While the cache is off, every request and every free goes to the
 * driver. A request that the driver or a limit refuses waits for pending blocks, and then releases
 * what was cached before. Allocated blocks stay valid. Under policy:direct the cache stays off. */
CACHALOT_API cachalot_status cachalot_set_caching(const cachalot_allocator *allocator, int device, int on);

/** No limit, for cachalot_set_limit. */
#define CACHALOT_NO_LIMIT UINT64_MAX

/** Limits the reserved bytes of a device. CACHALOT_NO_LIMIT removes the limit, and 0 allows no
 * segment. Segments above a new limit are kept: see cachalot_trim. */
CACHALOT_API cachalot_status cachalot_set_limit(const cachalot_allocator *allocator, int device, uint64_t bytes);

/** Limits the reserved bytes to a fraction of the device's memory, from 0 to 1; 1 removes the
 * limit.
 *   - Driver: reads the size of the memory.
 *   - Errors: INVALID_FRACTION. */
CACHALOT_API cachalot_status cachalot_set_memory_fraction(const cachalot_allocator *allocator, int device,
                                                          double fraction);

/** Does the work that requests under `policy:stitched` have put off, for about `max_us`
 * microseconds of the driver's time: removes the mappings that moved pages have left, and returns
 * memory beyond `slack` to the driver. Under `reclaim:auto`, gives idle memory back to the driver
 * where that is worth the cost. Maps pages ahead where elastic ranges have grown. Writes 1 to `more`
 * if the time is over and something is left for another call, otherwise 0; `more` may be NULL. In
 * other cases, there is nothing to do. Call it when the program is idle. It never waits for the
 * device. Other threads may call the allocator.
 *   - Driver: yes, if there is something to do. */
CACHALOT_API cachalot_status cachalot_maintain(const cachalot_allocator *allocator, int device, uint64_t max_us,
                                               int *more);

/** Lets a thread of the library call cachalot_maintain for every device, with a pause of
 * `interval_us` microseconds between two rounds. Another call changes the pace; an interval of 0
 * ends the thread and waits for its end. cachalot_destroy ends the thread, too.
 *   - Errors: BUSY if no thread can be started. */
CACHALOT_API cachalot_status cachalot_maintain_every(const cachalot_allocator *allocator, uint64_t interval_us,
                                                     uint64_t max_us);

/** The memory that cachalot_maintain has given back to the driver under `reclaim:auto`, and what it
 * has kept and why; see cachalot_get_reclaim_statistics. A unit is a segment without a block in
 * use, or a page of an expandable segment. The figures from `idle_bytes` on are those of the latest
 * call that looked at the memory; the others are sums. */
typedef struct cachalot_reclaim_statistics {
  size_t struct_size;            /**< sizeof(cachalot_reclaim_statistics). */
  uint64_t looks;                /**< Calls that looked at the memory. */
  uint64_t given_back_bytes;     /**< Memory given back. */
  uint64_t given_back_units;     /**< Units given back. */
  uint64_t obtained_again_bytes; /**< Memory that was obtained in place of memory given back. */
  uint64_t obtained_again_units; /**< Units that were obtained in place of units given back. */
  uint64_t too_early_units;      /**< Of these, the ones that were released too early. */
  uint64_t driver_us;            /**< The time of the driver's calls that gave memory back, in microseconds. */
  uint64_t observed_units;       /**< Idle units that were used again. Predictions are made from them. */
  uint64_t idle_bytes;           /**< Idle memory. */
  uint64_t needed_soon_bytes;    /**< The part of it that is expected to be needed too soon to be worth giving back. */
  uint64_t busy_bytes;           /**< Memory that is worth giving back, but only with a wait for the device. */
  uint64_t unpaid_bytes;         /**< Memory that is worth giving back, but not within the time or the budget. */
  uint64_t budget_us;            /**< The driver time that is left of the budget, in microseconds. */
  uint64_t caution;              /**< Memory must be idle 2 to the power of this times as long. Rises with units
                                      that were released too early. */
} cachalot_reclaim_statistics;
/** Initialises cachalot_reclaim_statistics. */
#define CACHALOT_RECLAIM_STATISTICS_INIT {sizeof(cachalot_reclaim_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/** Reports what cachalot_maintain has given back under `reclaim:auto`, and what it has kept and
 * why. Without the setting, all figures are 0.
 *   - Errors: STRUCT_SIZE. */
CACHALOT_API cachalot_status cachalot_get_reclaim_statistics(const cachalot_allocator *allocator, int device,
                                                             cachalot_reclaim_statistics *out);

/** Asks the program to free memory for a request of `bytes` that no cached block can serve. Returns
 * 0 if nothing was freed. After another value, the library searches the cache again before it calls
 * the driver. */
typedef int (*cachalot_shortage_callback)(void *userdata, int device, size_t bytes);

/** Sets the callback that frees memory before a segment is allocated; NULL removes the callback. A
 * call that is running on another thread may still run the previous callback. cachalot.h, under
 * Threads, has the rules for callbacks. */
CACHALOT_API cachalot_status cachalot_on_shortage(const cachalot_allocator *allocator,
                                                  cachalot_shortage_callback callback, void *userdata);

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
  uint64_t spare_bytes;                  /**< Pages of virtual memory that could neither serve nor be given back. */
  uint64_t pinned_bytes;                 /**< Pages of virtual memory that do not move. */
  uint64_t parked_bytes;                 /**< Parked memory: addresses without device memory. Part of no other sum. */
  uint64_t tag;                          /**< The tag of the request's pool, if any tag has limits; 0: none. */
  uint64_t tag_bytes;                    /**< What the tag's pools hold: cachalot_get_tag_report. */
  uint64_t tag_max_bytes;                /**< The tag's limit; 0: none. */
  uint32_t tag_refused;                  /**< 1: the tag's limit refused the request, and not the device; otherwise 0. */
  uint32_t reserved;                     /**< 0. */
} cachalot_oom_report;

/** Reports to the program that a request is about to fail. The report is valid until the callback
 * returns. */
typedef void (*cachalot_oom_callback)(void *userdata, const cachalot_oom_report *report);

/** Sets the callback that is called when a request is about to fail because memory ran out; NULL
 * removes the callback. The rules of cachalot_on_shortage apply. */
CACHALOT_API cachalot_status cachalot_on_out_of_memory(const cachalot_allocator *allocator,
                                                       cachalot_oom_callback callback, void *userdata);

#ifdef __cplusplus
}
#endif

#endif
