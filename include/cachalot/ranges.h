/**
 * @file cachalot/ranges.h
 * Elastic ranges: tables and caches that grow in place.
 */
#include "../cachalot.h" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_RANGES_H
#define CACHALOT_RANGES_H

#ifdef __cplusplus
extern "C" {
#endif

/** An elastic range: addresses that the program fills with memory part by part. Copy the structure
 * freely; its fields never change. */
typedef struct cachalot_range {
  const cachalot_allocator *allocator; /**< The allocator that reserved the range. */
  uint64_t number;                     /**< The number of the range. */
  void *base;                          /**< The address of the first byte. */
  size_t bytes;                        /**< The reserved bytes: `max_bytes`, rounded up to whole pages. */
  size_t page_bytes;                   /**< The bytes of a page, 2 MiB on present GPUs. */
  int device;                          /**< The number of the device. */
  uint32_t reserved;                   /**< 0. */
} cachalot_range;

/** Reserves addresses for `max_bytes`, rounded up to whole pages, and writes the range to `out`. No
 * device memory is used yet.
 *
 * A range is for a table or a KV cache that grows in place: the program commits parts, uses them,
 * and decommits them. The memory comes from the pages of the allocator, under every policy, and
 * counts against the same limit. Under "policy:stitched", pages move between blocks and ranges
 * without a driver call that allocates. In the statistics, a range counts as a block and a segment,
 * and its committed bytes as allocated. If the driver has no addresses left, cached memory and
 * released ranges first give their addresses back; the host may then wait for the device. A process
 * has 128 TiB of addresses for all devices: the statistic `pages.reserved_address_bytes` says how
 * many the allocator has reserved, and "expandable_segments_reserve" how many each stream reserves.
 *   - Driver: yes.
 *   - Errors: INVALID_ARGUMENT (0 bytes), TOO_LARGE, TABLE_FULL; OUT_OF_MEMORY if there are still
 *     too few addresses; UNSUPPORTED if the device has no virtual memory. */
CACHALOT_CHECKED cachalot_status cachalot_range_reserve(const cachalot_allocator *allocator, int device,
                                                        size_t max_bytes, cachalot_range *out);

/** Commits `bytes` bytes of a range from `offset` on: they get memory. Pages that already have
 * memory keep it, with its contents. Work submitted to `stream` after the call may use the part.
 * After a failure, the range is as it was. A short part that follows committed memory may get more
 * pages mapped after it, for the next commits; they serve others until they are committed.
 *
 * `offset` and `bytes` must be multiples of `page_bytes`, as for cuMemMap. The host does not wait
 * for the device, with two exceptions: memory would otherwise run out; or the addresses were
 * decommitted, their page already serves others, and the work before the decommit is unfinished.
 * While a graph is captured, a commit only gets memory that no work uses any more. Addresses that
 * the driver has failed to unmap are never used again: a commit of them fails with the driver's
 * error, and other parts of the range can be committed.
 *   - Driver: if a part has no memory.
 *   - Errors: OUT_OF_MEMORY, after the release of all memory that can be released; UNKNOWN_RANGE;
 *     INVALID_ARGUMENT (the part is not made of whole pages of the range); INVALID_STREAM;
 *     TABLE_FULL; CAPTURING while a graph is captured, if the addresses were decommitted and the
 *     work before the decommit is unfinished. */
CACHALOT_CHECKED cachalot_status cachalot_range_commit(cachalot_range range, size_t offset, size_t bytes,
                                                       cachalot_stream stream);

/** Gives up the memory of a part, after the work submitted to `stream` so far. Work of other
 * streams that uses the part must precede that work. From then on, others may use the memory after
 * that work. The mapping is removed later, once others use the memory or need it; until then, a
 * commit of the part takes the memory back without a call of the driver. The host never waits. Pages
 * of the part that have no memory do not change.
 *
 * The rules for `offset` and `bytes` are those of cachalot_range_commit. A commit may have used
 * physical pages longer than `page_bytes`, but never longer than the commit: the memory of such a
 * page is given up with its last part.
 *   - Driver: if a part has memory.
 *   - Errors: UNKNOWN_RANGE, INVALID_ARGUMENT, INVALID_STREAM, TABLE_FULL; CAPTURING while a graph
 *     is captured. The range is then as it was. */
CACHALOT_API cachalot_status cachalot_range_decommit(cachalot_range range, size_t offset, size_t bytes,
                                                     cachalot_stream stream);

/** Releases a range: gives up all its memory, after the work submitted so far to every stream that
 * a commit or a decommit of the range has named. If there are several such streams, one of them
 * waits for the others. The addresses are released once that work is done; the host waits only for
 * a stream that may be gone: see streams.h.
 *   - Driver: yes.
 *   - Errors: UNKNOWN_RANGE, TABLE_FULL; CAPTURING while a graph is captured. The program then
 *     still has the range. */
CACHALOT_API cachalot_status cachalot_range_release(cachalot_range range);

#ifdef __cplusplus
}
#endif

#endif
