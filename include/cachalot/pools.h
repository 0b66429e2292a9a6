/**
 * @file cachalot/pools.h
 * Private pools, which keep some requests apart from the others, and the capture of graphs.
 *
 * Capture
 *   - Call cachalot_capture_begin before a capture starts. Otherwise the capture must not start
 *     during a call of another thread: that call may just then ask the driver for the stream's id,
 *     or whether the stream is idle, which breaks the capture.
 *   - Under policy:stitched without CACHALOT_STREAMS_REPORTED, announce every capture during which
 *     other streams request memory: a request that finds no free block may record an event of the
 *     whole device, which breaks a capture that was not announced.
 *   - A graph's memory must remain unused by others while the graph can be launched. Route the
 *     requests of the capture to a private pool, between cachalot_capture_begin and
 *     cachalot_capture_end. Call cachalot_pool_release after the destruction of the graph.
 *   - A block that other streams use and that is freed during a capture stays pending until the end
 *     of the capture. With the setting graph_capture_record_stream_reuse, the graph may use the
 *     block again once the block's own stream has joined all streams that use the block. Work on
 *     the block from before the capture must then be complete. Without CACHALOT_STREAMS_REPORTED
 *     the setting has no effect on blocks of created streams, because these may be gone at the
 *     free. Without cachalot_capture_begin, this applies only to blocks that a capturing stream
 *     uses. Free parts of a capturing stream's expandable segments stay mapped until the end of the
 *     capture.
 */
#include "../cachalot.h" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_POOLS_H
#define CACHALOT_POOLS_H

#ifdef __cplusplus
extern "C" {
#endif

/** The name of a private pool on a device. {0, 0} is the default pool. */
typedef struct cachalot_pool {
  uint64_t first;  /**< The first half of the name. */
  uint64_t second; /**< The second half of the name. */
} cachalot_pool;

/* Flags of a private pool. */
#define CACHALOT_POOL_USE_ON_OOM 0x1u /**< Lends free blocks, but no graph's, to requests of the default pool that would fail. */
#define CACHALOT_POOL_NO_SPLIT 0x2u   /**< Gives each request a whole segment, new or cached. */

/** Makes a private pool with the caller as its only user, and writes the name to `out`.
 *   - Errors: INVALID_ARGUMENT, TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_pool_create(const cachalot_allocator *allocator, int device, uint32_t flags,
                                                  cachalot_pool *out);

/** Adds a user to a pool. If no pool has this name, makes the pool with these flags; otherwise
 * `flags` is ignored.
 *   - Errors: INVALID_ARGUMENT (flags, or the default pool), TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_pool_retain(const cachalot_allocator *allocator, int device, cachalot_pool pool,
                                                  uint32_t flags);

/** Removes a user from a pool. Memory of a pool without users is released with the rest of the
 * cache, and the name ends with the memory. A capture into a pool without users ends.
 *   - Errors: UNKNOWN_POOL. */
CACHALOT_API cachalot_status cachalot_pool_release(const cachalot_allocator *allocator, int device, cachalot_pool pool);

/** Writes the number of users of a pool to `out`.
 *   - Errors: UNKNOWN_POOL. */
CACHALOT_API cachalot_status cachalot_get_pool_users(const cachalot_allocator *allocator, int device,
                                                     cachalot_pool pool, uint32_t *out);

/** Waits for pending frees, then releases the free memory of a pool, with users or without.
 *   - Driver: yes, and waits for the streams.
 *   - Errors: UNKNOWN_POOL; STILL_HELD if the pool has users and a graph was captured into it,
 *     which may write to its memory: it stays. */
CACHALOT_API cachalot_status cachalot_pool_empty(const cachalot_allocator *allocator, int device, cachalot_pool pool);

/** Releases free memory of a pool, with users or without, until it holds at most `keep_bytes` or
 * has none. Does not wait for pending frees.
 *   - Driver: yes.
 *   - Errors: UNKNOWN_POOL; STILL_HELD as for cachalot_pool_empty, if the pool holds more;
 *     TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_pool_trim(const cachalot_allocator *allocator, int device, cachalot_pool pool,
                                                size_t keep_bytes);

/** Sets whether new pages of a pool lie on the host from the start, as far as `spill` and the host
 * allow: for memory that is large and rarely used. Beyond that, they are the device's. Existing
 * pages stay where they are, so call this before the first request of the pool. New segments of
 * such a pool are mapped, even under policy:caching without expandable_segments:True. 0 ends it.
 *   - Driver: yes, for the device's total memory.
 *   - Errors: UNKNOWN_POOL; UNSUPPORTED if `spill` is not set, if the policy maps no memory, or if
 *     the program supplies the pool's segments. */
CACHALOT_API cachalot_status cachalot_pool_spill(const cachalot_allocator *allocator, int device, cachalot_pool pool,
                                                 int on);

/** The requests that a route leads to a private pool. */
typedef int32_t cachalot_route;
/** The values of cachalot_route. */
enum {
  CACHALOT_ROUTE_ALL = 1,    /**< All requests of the device. */
  CACHALOT_ROUTE_STREAM = 2, /**< The requests of a stream. */
  CACHALOT_ROUTE_THREAD = 3  /**< The requests of the calling thread. */
};

/** Starts a route to a pool. The newest route that matches a request decides. The call adds a user
 * to the pool; the user remains after cachalot_pool_end, until cachalot_pool_release. `stream` is
 * read for CACHALOT_ROUTE_STREAM only.
 *   - Errors: UNKNOWN_POOL, INVALID_ARGUMENT, INVALID_STREAM, TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_pool_begin(const cachalot_allocator *allocator, int device, cachalot_pool pool,
                                                 cachalot_route route, cachalot_stream stream);

/** Ends the newest route to the pool that cachalot_pool_begin started.
 *   - Errors: UNKNOWN_POOL, NOT_ROUTED. */
CACHALOT_API cachalot_status cachalot_pool_end(const cachalot_allocator *allocator, int device, cachalot_pool pool);

/** Starts a route like cachalot_pool_begin, for the capture of a graph. Call it before the capture
 * starts. A later call is permitted if no other thread calls the library between the start of the
 * capture and this call. The new user of the pool is the graph: the program calls
 * cachalot_pool_release after the destruction of the graph.
 *   - Errors: UNKNOWN_POOL, INVALID_ARGUMENT, INVALID_STREAM, TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_capture_begin(const cachalot_allocator *allocator, int device, cachalot_pool pool,
                                                    cachalot_route route, cachalot_stream stream);

/** Ends the route of a capture. Call it after cudaStreamEndCapture. An earlier call is permitted if
 * no other thread calls the library between this call and the end of the capture.
 *   - Errors: UNKNOWN_POOL, NOT_ROUTED. */
CACHALOT_API cachalot_status cachalot_capture_end(const cachalot_allocator *allocator, int device, cachalot_pool pool);

#ifdef __cplusplus
}
#endif

#endif
