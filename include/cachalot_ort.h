/**
 * @file cachalot_ort.h
 * An allocator for ONNX Runtime: the table `OrtAllocator` for a device of an allocator. The rules of cachalot.h apply
 * here, too. Include ONNX Runtime's own `onnxruntime_c_api.h` first, of version 1.13 or later.
 *
 * @code
 * cachalot_ort_allocator memory;
 * OrtAllocator *table = cachalot_ort_init(&memory, allocator, 0, stream, ort, info);
 * status = ort->RegisterAllocator(env, table);
 * status = ort->AddSessionConfigEntry(options, "session.use_env_allocators", "1");
 * @endcode
 *
 * `info` comes from `CreateMemoryInfo("Cuda", OrtDeviceAllocator, 0, OrtMemTypeDefault, &info)`. `stream` is the
 * stream on which the CUDA provider computes, its option `user_compute_stream`.
 *
 * Streams
 *   - A block belongs to the stream of its request: `stream`, or with AllocOnStream (1.23) the one that ONNX Runtime
 *     names. `Free` names none: it frees in the order of the block's stream.
 *
 * Failures
 *   - A request that fails returns NULL, as one of 0 bytes does. A free that is refused changes nothing. In both cases
 *     cachalot_last_error has the reason, on the calling thread.
 *
 * Threads
 *   - Any thread may call any function of the table. cachalot_ort_init comes first.
 *
 * Since 0.1.
 */
#ifndef CACHALOT_ORT_H
#define CACHALOT_ORT_H

#include "cachalot.h"

#ifndef ORT_API_VERSION
#error "include onnxruntime_c_api.h before cachalot_ort.h"
#endif

#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The table with what its functions need. It must stay in place until every session that uses it is released. The
 * allocator of cachalot, the memory info and the interface of ONNX Runtime must stay as long. */
typedef struct cachalot_ort_allocator {
  OrtAllocator table;                  /**< What ONNX Runtime gets. The first field. */
  const cachalot_allocator *allocator; /**< Where the memory comes from. */
  int device;                          /**< The allocator's number of the device. */
  cachalot_stream stream;              /**< The stream of requests that name none. */
  const OrtApi *api;                   /**< ONNX Runtime's functions. */
  const OrtMemoryInfo *info;           /**< The kind of memory, which `Info` returns. */
} cachalot_ort_allocator;

static inline void *cachalot_ort_request(const cachalot_ort_allocator *memory, size_t bytes, cachalot_stream stream) {
  void *block = NULL;
  return cachalot_malloc(memory->allocator, memory->device, bytes, stream, &block) == CACHALOT_OK ? block : NULL;
}

/** `OrtAllocator::Alloc` and `Reserve`, like cachalot_malloc on the table's stream. */
static inline void *ORT_API_CALL cachalot_ort_alloc(struct OrtAllocator *table, size_t bytes) {
  const cachalot_ort_allocator *memory = (const cachalot_ort_allocator *)table;
  return cachalot_ort_request(memory, bytes, memory->stream);
}

/** `OrtAllocator::Free`, like cachalot_free. */
static inline void ORT_API_CALL cachalot_ort_free(struct OrtAllocator *table, void *block) {
  (void)cachalot_free(((const cachalot_ort_allocator *)table)->allocator, block);
}

/** `OrtAllocator::Info`. */
static inline const struct OrtMemoryInfo *ORT_API_CALL cachalot_ort_info(const struct OrtAllocator *table) {
  return ((const cachalot_ort_allocator *)table)->info;
}

#if ORT_API_VERSION >= 23
/** `OrtAllocator::AllocOnStream`, like cachalot_malloc on the stream's handle; NULL: the table's stream. */
static inline void *ORT_API_CALL cachalot_ort_alloc_on(struct OrtAllocator *table, size_t bytes,
                                                      OrtSyncStream *stream) {
  const cachalot_ort_allocator *memory = (const cachalot_ort_allocator *)table;
  const cachalot_stream named = stream ? (cachalot_stream)memory->api->SyncStream_GetHandle(stream) : memory->stream;
  return cachalot_ort_request(memory, bytes, named);
}

static inline OrtStatusPtr cachalot_ort_status(const cachalot_ort_allocator *memory, cachalot_status status) {
  return status == CACHALOT_OK ? NULL : memory->api->CreateStatus(ORT_FAIL, cachalot_last_error());
}

/** `OrtAllocator::GetStats`, in ONNX Runtime's keys. The figures are of the whole device, so also of memory that
 * others have from the same allocator. */
static inline OrtStatusPtr ORT_API_CALL cachalot_ort_stats(const struct OrtAllocator *table,
                                                           OrtKeyValuePairs **out) NO_EXCEPTION {
  const cachalot_ort_allocator *memory = (const cachalot_ort_allocator *)table;
  cachalot_statistics now = CACHALOT_STATISTICS_INIT;
  const cachalot_status read = cachalot_get_statistics(memory->allocator, memory->device, &now);
  const char *const keys[] = {"InUse",     "MaxInUse",           "TotalAllocated",
                              "NumAllocs", "NumArenaExtensions", "NumArenaShrinkages"};
  const int64_t values[] = {now.allocated_bytes.current, now.allocated_bytes.peak,   now.reserved_bytes.current,
                            now.allocations.allocated,   (int64_t)now.device_allocs, (int64_t)now.device_frees};
  size_t index;
  if (read != CACHALOT_OK) {
    return cachalot_ort_status(memory, read);
  }
  memory->api->CreateKeyValuePairs(out);
  for (index = 0; index < sizeof keys / sizeof *keys; ++index) {
    char text[24];
    (void)snprintf(text, sizeof text, "%lld", (long long)values[index]);
    memory->api->AddKeyValuePair(*out, keys[index], text);
  }
  return NULL;
}
#endif

#if ORT_API_VERSION >= 25
/** `OrtAllocator::Shrink`, like cachalot_empty_cache. */
static inline OrtStatusPtr ORT_API_CALL cachalot_ort_shrink(struct OrtAllocator *table) NO_EXCEPTION {
  const cachalot_ort_allocator *memory = (const cachalot_ort_allocator *)table;
  return cachalot_ort_status(memory, cachalot_empty_cache(memory->allocator, memory->device));
}
#endif

/** Fills the table for a device of an allocator, and returns it for ONNX Runtime. Cannot fail, and never calls the
 * driver. */
static inline OrtAllocator *cachalot_ort_init(cachalot_ort_allocator *memory, const cachalot_allocator *allocator,
                                              int device, cachalot_stream stream, const OrtApi *api,
                                              const OrtMemoryInfo *info) {
  memset(memory, 0, sizeof *memory);
  memory->table.version = ORT_API_VERSION;
  memory->table.Alloc = cachalot_ort_alloc;
  memory->table.Free = cachalot_ort_free;
  memory->table.Info = cachalot_ort_info;
#if ORT_API_VERSION >= 18
  memory->table.Reserve = cachalot_ort_alloc;
#endif
#if ORT_API_VERSION >= 23
  memory->table.GetStats = cachalot_ort_stats;
  memory->table.AllocOnStream = cachalot_ort_alloc_on;
#endif
#if ORT_API_VERSION >= 25
  memory->table.Shrink = cachalot_ort_shrink;
#endif
  memory->allocator = allocator;
  memory->device = device;
  memory->stream = stream;
  memory->api = api;
  memory->info = info;
  return &memory->table;
}

#ifdef __cplusplus
}
#endif

#endif
