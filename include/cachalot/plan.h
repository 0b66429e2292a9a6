/**
 * @file cachalot/plan.h
 * Plans: of repeated iterations, of buffers with known lives, of settings that adjust themselves;
 * and predictions of requests.
 */
#include "../cachalot.h" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_PLAN_H
#define CACHALOT_PLAN_H

#ifdef __cplusplus
extern "C" {
#endif

/** Announces the end of an iteration, such as a training step, and the start of the next.
 *
 * Under "policy:planned" the library observes an iteration: the sizes on each stream in order, and
 * the end of each block. A background thread computes a plan, within `plan_deadline_ms` (2000). The
 * next announcement activates the plan. A request that follows the sequence of its stream then gets
 * its planned place in a segment, without a search. The policy of `fallback` (caching by default)
 * serves all other requests: blocks that outlive their iteration, requests of another size or
 * order, requests with a planned place that is not free yet, requests routed to a private pool, and
 * requests during a capture. So a program that does not repeat itself still works.
 *
 * Streams share no bytes of a plan. A block of cachalot_record_stream keeps its bytes until the end
 * of its iteration, and longer if the other streams need more time. If more than a quarter of the
 * requests deviate in several iterations, or several iterations have no request, the library gives
 * up the plan, and observes again. Requests of other threads during the call belong to either
 * iteration. Under another policy the call does nothing.
 *   - Driver: polls pending frees. A plan that becomes active releases cached memory and allocates
 *     a segment for each stream; a plan that is given up releases the segments. If memory runs out,
 *     the plan waits for the next announcement. While a graph is captured, the driver is not
 *     called. */
CACHALOT_API cachalot_status cachalot_begin_iteration(const cachalot_allocator *allocator, int device);

/** Ends the active plans, and forgets what was observed and planned so far. The segment of each
 * plan is released once none of its blocks is in use; the blocks stay valid. The next
 * cachalot_begin_iteration starts to observe again. cachalot_empty_cache and cachalot_trim also end
 * plans, if none of their blocks is in use.
 *   - Driver: if a segment is released.
 *   - Errors: TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_end_plans(const cachalot_allocator *allocator, int device);

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
  uint64_t occupied;          /**< Requests with planned bytes that were not free yet: served by the fallback. */
  cachalot_stage stage;       /**< The progress. */
  uint32_t reserved;          /**< 0. */
} cachalot_plan_report;
/** Initialises cachalot_plan_report. */
#define CACHALOT_PLAN_REPORT_INIT {sizeof(cachalot_plan_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/** Reports on the planned policy. Under another policy, the stage is CACHALOT_STAGE_WAITING and
 * every count is 0. */
CACHALOT_API cachalot_status cachalot_get_plan_report(const cachalot_allocator *allocator, int device,
                                                      cachalot_plan_report *out);

/** The stage of `tune:auto`. */
typedef int32_t cachalot_tune_stage;
/** The values of cachalot_tune_stage. */
enum {
  CACHALOT_TUNE_OFF = 1,       /**< The setting is off. */
  CACHALOT_TUNE_RECORDING = 2, /**< Requests are recorded. */
  CACHALOT_TUNE_SEARCHING = 3, /**< A search is running in the background. */
  CACHALOT_TUNE_TRIAL = 4      /**< Other settings are active, and are being measured. */
};

/** A report on `tune:auto` on a device: what it did, and why. Counts start with the allocator.
 * Bytes are those of the default pool. */
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
  uint64_t retired_bytes;    /**< Segments to be given back once the GPU is done with them; part of no other sum. */
  cachalot_tune_stage stage; /**< The stage. */
  int32_t tuned;             /**< 1: the active settings are not the program's; otherwise 0. */
} cachalot_tune_report;
/** Initialises cachalot_tune_report. */
#define CACHALOT_TUNE_REPORT_INIT {sizeof(cachalot_tune_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/** Reports on `tune:auto`. The library records the latest requests, searches the settings of the
 * caching policy in the background, and activates the best at an idle moment: in
 * cachalot_begin_iteration, in cachalot_maintain, and in the upkeep of cachalot_maintain_every.
 * Without any of these calls nothing changes. No settings change while a graph is being captured.
 * cachalot_get_config returns the active settings, and cachalot_configure ends those that were
 * found.
 *
 * Settings become active if they save 2 % or more of the reserved memory of the recorded requests,
 * and the search does not see the later part of these requests. They are taken back if they save
 * less than half of what was predicted. Idle memory of the previous settings goes back to the
 * driver, never during a request and without a wait for the GPU. */
CACHALOT_API cachalot_status cachalot_get_tune_report(const cachalot_allocator *allocator, int device,
                                                      cachalot_tune_report *out);

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
/** Initialises cachalot_forecast. */
#define CACHALOT_FORECAST_INIT {sizeof(cachalot_forecast), NULL, 0, 0, 0}

/** Predicts the first step of cachalot_malloc with these arguments, under every policy, and changes
 * nothing. A predicted block is the block that cachalot_malloc would return. The prediction counts
 * pending frees as pending, and memory decommitted from ranges as in use, although cachalot_malloc
 * would poll both. The answer of the driver to a request for memory is unknown in advance. A
 * guarded block ("guard") is reported as CACHALOT_WOULD_EXPAND, because pages are mapped for it.
 *   - Driver: only while a graph is captured, and to find out whether memory to be unmapped belongs
 *     to a capturing stream. With CACHALOT_OPEN_LATER, a device that was never used stays without a
 *     context.
 *   - Errors: TOO_LARGE, INVALID_STREAM, STRUCT_SIZE, TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_get_forecast(const cachalot_allocator *allocator, int device, size_t bytes,
                                                   cachalot_stream stream, cachalot_forecast *out);

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
/** Initialises cachalot_fit. */
#define CACHALOT_FIT_INIT {sizeof(cachalot_fit), 0, 0, 0, 0, 0, 0}

/** Reports whether the `count` requests of `sizes` bytes on `stream` would be served if they were
 * made now, one after another, none of them freed, and changes nothing. The code of cachalot_malloc
 * makes the requests on a copy of the device's state, so the answer is exact for the policy if no
 * other call comes between. It assumes that no pending free completes before a request would wait
 * for it (cachalot_process_events finds out which have), that no callback or other thread frees
 * memory, and that new memory has higher addresses than all other memory. Free device memory is
 * that of the driver's latest answer, changed by what the allocator has obtained and given back
 * since; cachalot_get_device_info asks the driver again. The copy takes about as long as a
 * snapshot, and as much host memory as the allocator's tables; other threads' calls for the device
 * wait while it is made. What other threads are doing at this moment counts as unfinished.
 *   - Driver: only while a graph is captured, to learn which streams capture it; and with
 *     CACHALOT_OPEN_LATER for the size of a device that was never used. All of its memory then
 *     counts as free, and no context is made.
 *   - Errors: TOO_LARGE, INVALID_STREAM, STRUCT_SIZE, TABLE_FULL, PARKED. */
CACHALOT_API cachalot_status cachalot_get_fit(const cachalot_allocator *allocator, int device, const size_t *sizes,
                                              size_t count, cachalot_stream stream, cachalot_fit *out);

#define CACHALOT_BUFFER_FIXED 0x1u /**< The buffer is at `offset`, and nowhere else. */
#define CACHALOT_BUFFER_GAP 0x2u   /**< The entry is a gap in the life of the last buffer before it. */

/** A buffer with a known life, or a gap of one; see cachalot_plan_buffers. The structure never
 * grows. */
typedef struct cachalot_buffer {
  uint64_t start;     /**< The first step at which the buffer is live. */
  uint64_t end;       /**< The first step at which the buffer is no longer live; UINT64_MAX: live to the end. */
  uint64_t bytes;     /**< The length, above 0. */
  uint64_t alignment; /**< A power of two that divides the offset; 0: 1. */
  uint64_t offset;    /**< With CACHALOT_BUFFER_FIXED or in a gap, the offset; otherwise not read. */
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
/** Initialises cachalot_buffer_plan. */
#define CACHALOT_BUFFER_PLAN_INIT {sizeof(cachalot_buffer_plan), 0, 0, 0, 0}

/** Plans the memory of a program that knows its buffers in advance. Writes an offset for each of
 * the `count` buffers to `offsets`, such that buffers that are live at the same step share no byte,
 * and what is known about the plan to `out`. The program then needs one block of `peak_bytes`, and
 * no other request. An alignment rounds offsets up, but never `peak_bytes`: a program that puts
 * another region above rounds it up once. The algorithms run on `threads` threads (0, or more than
 * there are cores: one for each core), which end before the call returns, until a plan is proven
 * optimal or `deadline_us` microseconds have passed. A plan is found in any case: with a deadline
 * of 0, by one fast algorithm. Which of several plans is found depends on the timing of the
 * threads. Needs no allocator, and no GPU.
 *
 * Entries with CACHALOT_BUFFER_GAP follow their buffer: from `start` up to `end`, the buffer needs
 * only `bytes` of its bytes, from its byte `offset` on, or none if `bytes` is 0. The `alignment` of
 * a gap is 0. Other buffers are planned into gaps. The number in `offsets` is that of the buffer.
 * One kind of gap is not planned exactly: its bytes start above the buffer's first byte, right
 * after a time at which the buffer did not need all of its bytes. The bytes below are then kept,
 * too, and the plan is called optimal only if its peak is the lower bound.
 *   - Errors: NULL; STRUCT_SIZE; INVALID_ARGUMENT if a buffer has a mistake: cachalot_last_error
 *     gives the index of the buffer; PANIC. */
CACHALOT_CHECKED cachalot_status cachalot_plan_buffers(const cachalot_buffer *buffers, size_t count, uint32_t threads,
                                                       uint64_t deadline_us, uint64_t *offsets,
                                                       cachalot_buffer_plan *out);

#ifdef __cplusplus
}
#endif

#endif
