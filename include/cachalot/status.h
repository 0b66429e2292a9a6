/**
 * @file cachalot/status.h
 * The numbers of all errors, and the marks of functions. Every other header includes this one.
 *
 * Errors
 *   - Numbers never change. Later versions may add numbers, so treat an unknown number as a
 *     failure.
 *   - The library remembers the loss of a CUDA context. Later calls that need the driver return
 *     CACHALOT_ERROR_CONTEXT_LOST without calling the driver.
 *   - A fault of the library is CACHALOT_ERROR_PANIC, and poisons the allocator: later calls return
 *     CACHALOT_ERROR_POISONED. Other allocators continue to work. A library that was built to abort
 *     on panics ends the process instead.
 */
#ifndef CACHALOT_STATUS_H
#define CACHALOT_STATUS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
/** Marks a function of the library. */
#define CACHALOT_API __attribute__((visibility("default")))
/** Marks a function with a status that must be used. */
#define CACHALOT_CHECKED CACHALOT_API __attribute__((warn_unused_result))
#else
/** Marks a function of the library. */
#define CACHALOT_API
/** Marks a function with a status that must be used. */
#define CACHALOT_CHECKED CACHALOT_API
#endif

/** The result of a call: one of the numbers below, or a number of a later version. */
typedef int32_t cachalot_status;

/** The values of cachalot_status. */
enum {
  CACHALOT_OK = 0, /**< The call succeeded. */
  /* 100 to 199: a mistake of the program. Nothing has changed, and the driver was not called. */
  CACHALOT_ERROR_NULL = 110,             /**< A required pointer is NULL. */
  CACHALOT_ERROR_STRUCT_SIZE = 114,      /**< `struct_size` is out of range, or an unknown field is not 0. */
  CACHALOT_ERROR_INVALID_HANDLE = 120,   /**< The handle is not an allocator, or is a destroyed one. */
  CACHALOT_ERROR_POISONED = 124,         /**< An earlier call of the allocator ended in CACHALOT_ERROR_PANIC. */
  CACHALOT_ERROR_BUSY = 128,             /**< A callback called cachalot_destroy for its own allocator. */
  CACHALOT_ERROR_UNKNOWN_DEVICE = 132,   /**< The allocator has no device with this number. */
  CACHALOT_ERROR_INVALID_POINTER = 136,  /**< The address is not an allocated block. */
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
  CACHALOT_ERROR_PARKED = 180,           /**< The memory is parked or lent: wake or reclaim it first. */
  CACHALOT_ERROR_NOT_PARKABLE = 184,     /**< The memory cannot be parked, woken or lent now: the text says why. */
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

#ifdef __cplusplus
extern "C" {
#endif

/** Returns the name of a status, such as "CACHALOT_ERROR_NULL", or "CACHALOT_ERROR_UNKNOWN" for
 * other numbers. The text is valid forever. */
CACHALOT_API const char *cachalot_status_name(cachalot_status status);

/** Returns the meaning of a status in a few words. The text is valid forever. */
CACHALOT_API const char *cachalot_status_text(cachalot_status status);

#ifdef __cplusplus
}
#endif

#endif
