/**
 * @file cachalot/tags.h
 * Tags: names of private pools, with limits for the parts of a program. Memory with a tag can be
 * parked.
 */
#include "../cachalot.h" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_TAGS_H
#define CACHALOT_TAGS_H

#ifdef __cplusplus
extern "C" {
#endif

/** Sets the tag under which the memory of a private pool is parked; 0 removes the tag. Several
 * pools may have the same tag. Set it before the first request: segments that the pool already has
 * stay as they are. From then on, the pool's segments are mapped, also under "policy:caching". Only
 * mapped memory can be parked: under "policy:caching", "policy:stitched",
 * "policy:bfc,expandable_segments:True", and "policy:planned" with one of these as fallback.
 *   - Errors: UNKNOWN_POOL; PARKED if the pool, or another pool with the tag, is parked;
 *     NOT_PARKABLE under another policy, and if the program supplies the pool's segments;
 *     TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_pool_set_tag(const cachalot_allocator *allocator, int device, cachalot_pool pool,
                                                   uint64_t tag);

/** The limits of a tag, in the words of Linux's control groups; see cachalot_tag_set_limits. */
typedef struct cachalot_tag_limits {
  size_t struct_size; /**< sizeof(cachalot_tag_limits). */
  uint64_t max_bytes; /**< The most that the tag's pools hold of the device's memory; 0: no limit. */
  uint64_t low_bytes; /**< Up to this, the tag's memory is never given back for others; at most `max_bytes`. */
  uint32_t weight;    /**< The share, relative to the weights of others, when memory is short; 0: 100. */
  uint32_t clear;     /**< 1: pages that leave the tag are filled with zeroes first; otherwise 0. */
} cachalot_tag_limits;
/** Initialises cachalot_tag_limits. */
#define CACHALOT_TAG_LIMITS_INIT {sizeof(cachalot_tag_limits), 0, 0, 0, 0}

/** Sets the limits of all private pools with a tag, present and future; NULL removes the limits.
 * cachalot_pool_set_tag gives pools their tags.
 *   - `max_bytes`: if a pool would have to grow beyond it for a request, free memory of the tag is
 *     given back first. If that is not enough, the request is OUT_OF_MEMORY, without a driver call,
 *     and the memory of others is not touched. A limit below what the tag holds gives nothing back,
 *     and parked memory wakes even beyond the limit.
 *   - `low_bytes` and `weight`: if memory is short, free memory is given back from the tag that
 *     holds the most above `low_bytes`, divided by the weight. Memory without a tag that has limits
 *     counts as a tag with 0 and 100. `low_bytes` reserves nothing.
 *   - `clear`: other pools never see what was in a page.
 *
 * Unlike other private pools, pools with limits give free memory back while they are in use, unless
 * a graph was captured into them: for requests, for cachalot_trim and cachalot_empty_cache, and for
 * `reclaim:auto` down to `low_bytes`. CACHALOT_POOL_USE_ON_OOM has no
 * effect on them.
 *   - Errors: STRUCT_SIZE, INVALID_ARGUMENT (the tag is 0, `low_bytes` is above `max_bytes`,
 *     `clear` is not 0 or 1), TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_tag_set_limits(const cachalot_allocator *allocator, int device, uint64_t tag,
                                                     const cachalot_tag_limits *limits);

/** Releases free memory of the pools with a tag, with limits or without, until they hold at most
 * `keep_bytes` together or have none. Does not wait for pending frees. `low_bytes` does not apply.
 *   - Driver: yes.
 *   - Errors: UNKNOWN_TAG; INVALID_ARGUMENT if the tag is 0; STILL_HELD if they hold more, and a
 *     graph was captured into one of them that has users; TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_tag_trim(const cachalot_allocator *allocator, int device, uint64_t tag,
                                               size_t keep_bytes);

/** The memory held by the pools of a tag; see cachalot_get_tag_report. */
typedef struct cachalot_tag_report {
  size_t struct_size;    /**< sizeof(cachalot_tag_report). */
  uint64_t charge_bytes; /**< Memory held from the device: blocks, and the free rest of their pages and segments. */
  uint64_t live_bytes;   /**< Live blocks: part of `charge_bytes`, unless the memory is parked. */
  uint64_t cached_bytes; /**< Free memory: part of `charge_bytes`. */
  uint64_t max_bytes;    /**< The limit on `charge_bytes`; 0: none. */
  uint64_t low_bytes;    /**< Memory of the tag that is not given back for requests of others. */
  uint64_t refusals;     /**< Requests refused because of `max_bytes`. */
  uint64_t given_bytes;  /**< Memory given back because of `max_bytes`, or because memory was short. */
  uint32_t weight;       /**< The weight; 0: the tag has no limits. */
  uint32_t clear;        /**< 1: pages are filled with zeroes before they leave the tag; otherwise 0. */
} cachalot_tag_report;
/** Initialises cachalot_tag_report. */
#define CACHALOT_TAG_REPORT_INIT {sizeof(cachalot_tag_report), 0, 0, 0, 0, 0, 0, 0, 0, 0}

/** Writes to `out` what the pools of a tag hold. While threads allocate, the figures may disagree
 * slightly.
 *   - Errors: STRUCT_SIZE, INVALID_ARGUMENT, UNKNOWN_TAG if no pool has the tag and it has no
 *     limits. */
CACHALOT_API cachalot_status cachalot_get_tag_report(const cachalot_allocator *allocator, int device, uint64_t tag,
                                                     cachalot_tag_report *out);

#ifdef __cplusplus
}
#endif

#endif
