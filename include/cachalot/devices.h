/**
 * @file cachalot/devices.h
 * The devices of an allocator, pinned memory of the host, and the end of a process.
 *
 * Host memory
 *   - An allocator with CACHALOT_HOST allocates pinned memory of the host, for copies between the
 *     host and a GPU. The memory of device i is on the NUMA node of this GPU, if the system has
 *     several nodes. Every GPU of the process can copy from and to it, and kernels can use it at
 *     the same address where the GPU has unified addressing.
 *   - A block belongs to no stream: `stream` is NULL in cachalot_malloc, and the host may write to
 *     the block immediately. Announce each stream that copies from or to the block, including the
 *     default stream, with cachalot_record_stream or cachalot_record_use. The freed block then
 *     stays pending until the copies are done.
 *   - Under the policy caching, the settings that `config` does not name are
 *     "compact:0.01,exact_segments:True". A limit counts host memory, and cachalot_get_device_info
 *     describes the memory of the system, or of the process's control group.
 *   - The segments are mapped in huge pages and touched by several threads, and then registered
 *     with the driver (cuMemHostRegister). A request for more memory than the system has left is
 *     OUT_OF_MEMORY. A forked child does not have the memory: an access ends the child.
 *   - There is no virtual memory: `expandable_segments` has no effect, and there are no elastic
 *     ranges.
 *
 * Shutdown
 *   - At the end of a process or thread, the library does nothing: the system releases the memory.
 *     Destroying an allocator before the end is optional, and must happen while the driver works.
 *     Functions that run at exit may find the driver gone: driver calls then return
 *     CACHALOT_ERROR_SHUTDOWN. The thread of cachalot_maintain_every ends its round before the
 *     driver ends, and starts no other.
 *   - The library never unloads the driver. Do not unload the library while an allocator exists.
 *   - Destroy every allocator of a device before cudaDeviceReset, cuDevicePrimaryCtxReset or the
 *     end of its context. The memory of cached and live blocks is gone afterwards. The next call
 *     that needs the driver finds this out and returns CACHALOT_ERROR_CONTEXT_LOST, and so does
 *     every later request; a request that the cache serves before that does not notice.
 *     cachalot_check_health asks the driver. With drivers before CUDA 12.0, a recreated context
 *     cannot be told from the former one. cachalot_destroy returns the same status, and a new
 *     allocator works. Memory on pages stays on the device until the process ends.
 */
#include "../cachalot.h" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_DEVICES_H
#define CACHALOT_DEVICES_H

#ifdef __cplusplus
extern "C" {
#endif

/** Writes the number of devices to `out`. Devices are numbered from 0. */
CACHALOT_API cachalot_status cachalot_get_device_count(const cachalot_allocator *allocator, int *out);

/** The state of a device. */
typedef struct cachalot_device_info {
  size_t struct_size;      /**< sizeof(cachalot_device_info). */
  uint64_t total_bytes;    /**< The device's memory. */
  uint64_t free_bytes;     /**< The memory that no process uses. */
  uint64_t process_bytes;  /**< The memory that this process uses, in total; 0: unknown. */
  uint64_t reserved_bytes; /**< Bytes of the allocator's segments. */
  uint64_t limit_bytes;    /**< The limit on reserved bytes, or CACHALOT_NO_LIMIT. */
  uint64_t leaked_bytes;   /**< Bytes that the driver failed to release. */
  int ordinal;             /**< The driver's number of the device. */
  int simulated;           /**< 1: a simulated device; 0: a CUDA device. */
  int virtual_memory;      /**< 1: segments can be expandable; 0: they cannot. */
  uint32_t reserved;       /**< 0. */
} cachalot_device_info;
/** Initialises cachalot_device_info. */
#define CACHALOT_DEVICE_INFO_INIT {sizeof(cachalot_device_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/** Describes a device.
 *   - Driver: yes (about 5 us; the first call may load the management library, for some ms).
 *   - Errors: STRUCT_SIZE. */
CACHALOT_API cachalot_status cachalot_get_device_info(const cachalot_allocator *allocator, int device,
                                                      cachalot_device_info *out);

/** Returns CACHALOT_OK for a usable device, and otherwise the failure that lost the device, with
 * the driver's code.
 *   - Driver: to find out whether the program has reset the device (about 0.1 us).
 *   - Errors: CONTEXT_LOST, SHUTDOWN. */
CACHALOT_API cachalot_status cachalot_check_health(const cachalot_allocator *allocator, int device);

/** Lets work on device `peer` access the memory of `device`, current and future. The access has one
 * direction. A repeated call is allowed.
 *   - Driver: yes.
 *   - Errors: UNSUPPORTED if the devices cannot reach each other. */
CACHALOT_API cachalot_status cachalot_enable_peer_access(const cachalot_allocator *allocator, int device, int peer);

#ifdef __cplusplus
}
#endif

#endif
