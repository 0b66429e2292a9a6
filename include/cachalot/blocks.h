/**
 * @file cachalot/blocks.h
 * The block of an address, its physical pages, and memory that network adapters, other libraries or
 * other processes use.
 */
#include "../cachalot.h" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_BLOCKS_H
#define CACHALOT_BLOCKS_H

#ifdef __cplusplus
extern "C" {
#endif

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
/** Initialises cachalot_block. */
#define CACHALOT_BLOCK_INIT {sizeof(cachalot_block), NULL, 0, 0, 0, NULL, 0, 0, 0}

/** Describes the block that contains `address`, which may be anywhere in the block.
 *   - Errors: INVALID_POINTER, STRUCT_SIZE. */
CACHALOT_API cachalot_status cachalot_get_block(const cachalot_allocator *allocator, const void *address,
                                                cachalot_block *out);

/** Frees a block like cachalot_free, and checks that the program requested exactly `bytes`.
 *   - Errors: WRONG_SIZE, and the errors of cachalot_free. */
CACHALOT_API cachalot_status cachalot_free_sized(const cachalot_allocator *allocator, void *block, size_t bytes);

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

/** Lists the physical parts of a live block, in the order of addresses. They cover the block, which
 * may be longer than requested, and stay as they are while the block is live or pinned, until it is
 * parked or cachalot_advise moves it. A page keeps its number until it returns to the driver. `count` holds the room at
 * `extents` before the call, and the number of extents afterwards. With NULL for `extents`, the
 * call only counts. NULL as `block` has no extents.
 *   - Errors: INVALID_POINTER, unless the address is the first byte of a block; BUFFER_TOO_SMALL,
 *     TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_get_extents(const cachalot_allocator *allocator, const void *block,
                                                  cachalot_extent *extents, size_t *count);

/** Keeps the memory under a live block in place. The pages under the block, or its ordinary
 * segment, neither move nor return to the driver before as many calls of cachalot_unpin, even if
 * the block is freed earlier. After the free, other blocks may use the memory. Use it for memory
 * registered with a network adapter, or with a library that uses the physical memory directly.
 * While memory is pinned, cachalot_destroy returns STILL_HELD. NULL is accepted, and does nothing.
 *   - Errors: INVALID_POINTER, unless the address is the first byte of a block; PARKED if a part of
 *     the block is parked, or about to be; TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_pin(const cachalot_allocator *allocator, const void *block);

/** Undoes one cachalot_pin of a block with this address, which may be freed by now. If blocks of
 * different lengths were pinned at the address, one after the other, the longest is unpinned last.
 * NULL is accepted, and does nothing.
 *   - Driver: only for a guarded block that was freed (`guard`), which stays mapped until its last
 *     unpin.
 *   - Errors: NOT_PINNED. */
CACHALOT_API cachalot_status cachalot_unpin(const cachalot_allocator *allocator, const void *block);

/** How soon a block will be used. */
typedef int32_t cachalot_advice;
/** The values of cachalot_advice. */
enum {
  CACHALOT_COLD = 1, /**< Rarely: its pages may lie on the host. */
  CACHALOT_HOT = 2   /**< Soon or often: its pages belong on the device. */
};

/** Moves the pages of a live block to the host (CACHALOT_COLD), within the bytes that `spill`
 * allows, or back to the device (CACHALOT_HOT). Address and contents stay, captured graphs stay
 * valid, and kernels use memory of the host at the rate of the link. Only pages that are wholly
 * under the block move, and none that is pinned; if the memory of the other kind ends, the rest
 * stays. Of a parked block, the call says where its pages wake. Writes to `moved_bytes` how many
 * bytes have moved, or will wake elsewhere; NULL is accepted. NULL as `block` has no pages.
 *
 * The call waits for the work queued before on the block's stream and on the streams recorded as
 * its users. No other call and no later work may use the block before the call has returned.
 *   - Driver: yes, and waits for the copies.
 *   - Errors: INVALID_POINTER, unless the address is the first byte of a block; INVALID_ARGUMENT
 *     (advice); UNSUPPORTED for CACHALOT_COLD if `spill` is not set; CAPTURING; NOT_PARKABLE if
 *     another call has been parking or waking memory for five seconds; OUT_OF_MEMORY if there are
 *     no addresses for the copies; those of the driver. Pages that have moved by then have moved,
 *     and no contents are lost. If the driver unmaps a page and then keeps refusing to map one in
 *     its place, the context counts as lost. */
CACHALOT_API cachalot_status cachalot_advise(const cachalot_allocator *allocator, const void *block,
                                             cachalot_advice advice, uint64_t *moved_bytes);

/** Writes to `fd` a POSIX file descriptor of the page that contains `address`, any byte of pinned
 * memory, whether its block is live or freed: usually `block + extent.offset`, once for each
 * extent. Another process that gets the descriptor, for example over a Unix socket, imports it with
 * cuMemImportFromShareableHandle, maps all `extent.memory_bytes` of the page, and finds the bytes
 * of the extent from `extent.memory_offset` on. Both processes read and write the same memory,
 * including other blocks on the page, so only share with trusted processes.
 *
 * The program owns the descriptor and closes it, at the latest when the other process has imported
 * it. Each call makes a new one. The library does not see what happens to the descriptor or in the
 * other process. While the other process uses the bytes, keep the block, because its memory serves
 * other requests after the free, and keep the pin, because the page may move to other addresses, or
 * return to the driver, after cachalot_unpin. The driver keeps a returned page in use until the
 * other process has unmapped and released it, too.
 *   - Driver: yes, about 0.5 ms.
 *   - Errors: NOT_PINNED if no pinned memory contains the address; UNSUPPORTED for an ordinary
 *     segment, and if the device shares no memory between processes. */
CACHALOT_API cachalot_status cachalot_export_fd(const cachalot_allocator *allocator, const void *address, int *fd);

/** Reports a page to the program: the `bytes` of device memory at `address`. */
typedef void (*cachalot_mapping_callback)(void *userdata, int device, void *address, size_t bytes);

/** Sets the callback that is called for every page of virtual memory that is mapped, before a block
 * there is handed out, or before parked blocks there wake; NULL removes the callback. A page that
 * moves is mapped at its new place first, and unmapped at the old one later. The callback runs on
 * any thread that allocates, wakes memory, or calls cachalot_maintain. Ordinary segments are not
 * mapped. The rules of cachalot_on_shortage apply. */
CACHALOT_API cachalot_status cachalot_on_map(const cachalot_allocator *allocator, cachalot_mapping_callback callback,
                                             void *userdata);

/** Sets the callback that is called for every page that is about to be unmapped, with the address
 * and bytes of cachalot_on_map; NULL removes the callback. No work uses the addresses. No block is
 * there, except blocks that cachalot_park is parking. If the driver then fails to unmap the page,
 * the addresses are never used again. But a page that a failed cachalot_park or cachalot_wake
 * leaves mapped remains in use, and the callback of cachalot_on_map is called for it once more. The
 * callback also runs in cachalot_destroy, where calls of the allocator fail. The rules of
 * cachalot_on_shortage apply. */
CACHALOT_API cachalot_status cachalot_on_unmap(const cachalot_allocator *allocator, cachalot_mapping_callback callback,
                                               void *userdata);

/** The driver calls of one kind since cachalot_create. */
typedef struct cachalot_calls {
  uint64_t calls; /**< The number of calls, including failed ones. */
  uint64_t us;    /**< The time of the calling threads in these calls, in microseconds. */
} cachalot_calls;

/** The use and the cost of a device's pages of virtual memory; see cachalot_get_page_statistics. */
typedef struct cachalot_page_statistics {
  size_t struct_size;          /**< sizeof(cachalot_page_statistics). */
  uint64_t mapped_bytes;       /**< Pages mapped where blocks can use them. */
  uint64_t spare_bytes;        /**< Pages that are mapped nowhere, and parts of pages next to guarded blocks. */
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
/** Initialises cachalot_page_statistics. */
#define CACHALOT_PAGE_STATISTICS_INIT                                                                                  \
  {sizeof(cachalot_page_statistics), 0, 0, 0, 0, 0, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, 0, \
   0, 0, 0}

/** Reports what the pages of virtual memory are used for, under `policy:stitched` and with
 * expandable segments, and what the driver calls for them have cost.
 *   - Errors: STRUCT_SIZE. */
CACHALOT_API cachalot_status cachalot_get_page_statistics(const cachalot_allocator *allocator, int device,
                                                          cachalot_page_statistics *out);

#ifdef __cplusplus
}
#endif

#endif
