/**
 * @file cachalot/diagnose.h
 * What happened, and why: statistics by name, metrics, traces with call stacks, snapshots,
 * addresses at which kernels fault.
 */
#include "../cachalot.h" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_DIAGNOSE_H
#define CACHALOT_DIAGNOSE_H

#ifdef __cplusplus
extern "C" {
#endif

/** Reads a statistic by name: a flattened name of torch.cuda.memory_stats(), such as
 * "reserved_bytes.all.peak", or a name of docs/statistics.md, such as "pages.moved_bytes".
 *   - Errors: UNKNOWN_KEY. */
CACHALOT_API cachalot_status cachalot_find_statistic(const cachalot_allocator *allocator, int device, const char *key,
                                                     int64_t *out);

/** Receives a statistic. The key is valid until the callback returns. Returns 0 to continue. */
typedef int (*cachalot_statistic_visitor)(void *userdata, const char *key, int64_t value);

/** Calls `visit` with the name and the value of every statistic of cachalot_find_statistic, in a
 * fixed order.
 *   - Errors: STOPPED. */
CACHALOT_API cachalot_status cachalot_visit_statistics(const cachalot_allocator *allocator, int device,
                                                       cachalot_statistic_visitor visit, void *userdata);

/** Sets every peak to the current value. */
CACHALOT_API cachalot_status cachalot_reset_peaks(const cachalot_allocator *allocator, int device);

/** Sets the accumulated statistics (`allocated` and `freed`) and the counts of events to 0. */
CACHALOT_API cachalot_status cachalot_reset_accumulated(const cachalot_allocator *allocator, int device);

/** Receives the next part of a text, without a final NUL. Returns 0 to continue. */
typedef int (*cachalot_writer)(void *userdata, const char *text, size_t bytes);

/** Writes the metrics of every device as OpenMetrics 1.0 text: the version, the active settings,
 * the GPU's UUID, memory in total and by pool and stream, peaks, totals, limits. Every family has
 * its type and help, and a unit unless it is an `info`. The text is that of `cachalot export --to
 * openmetrics`, and more. `write` gets parts of up to 64 KiB. Heaps are read one after another and
 * every block is visited, so the call takes about as long as a snapshot without its history. The
 * media type of the text is "application/openmetrics-text; version=1.0.0; charset=utf-8".
 *   - Errors: STOPPED. */
CACHALOT_API cachalot_status cachalot_write_metrics(const cachalot_allocator *allocator, cachalot_writer write,
                                                    void *userdata);

/** Records the latest `capacity` events of a device; 0 stops the recording, and leaves the device to
 * the recorder if one is on (cachalot_recorder_start). Events recorded before are dropped. An event takes 40 bytes, and every 32nd event takes a lock. While more than 16
 * streams and pools are busy at the same time, the trace may hold a few hundred events less,
 * because an event is kept only together with all later events. Snapshots say under
 * `allocator_settings`, as PyTorch's do, how many events the largest trace keeps
 * (`trace_alloc_max_entries`), and whether the first ones were dropped (`trace_alloc_overflowed`).
 *   - Errors: TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_trace_start(const cachalot_allocator *allocator, int device, size_t capacity);

/** Starts the flight recorder: keeps the latest events of every device from now on, cheaply enough
 * to be always on, and writes a snapshot with them to a new file when a request fails for lack of
 * memory. A line on the standard error and the text of the failure name the file. A call replaces
 * the options of the call before, and drops the events.
 *
 * `options` is NULL, a number of events, or a list such as
 * "events:65536,folder:/var/tmp,files:1":
 *   - `events`: how many events of each device are kept; 0 stops the recorder. Default: 131072. An
 *     event takes 40 bytes, which are used as events come.
 *   - `folder`: the folder of the files. Default: the system's folder for temporary files. A file
 *     is named cachalot-oom-PID-N.pickle, and is never written over another. If it cannot be
 *     written, a line on the standard error says why, and the program goes on.
 *   - `files`: how many files are tried at most. Default: 3.
 *   - `stacks`: for cachalot_torch.h. Here, cachalot_on_stack describes the stacks.
 *
 * Events are those of cachalot_trace_start, except for their times: the clock is read for segments
 * and for every 32nd event of the small or the large blocks of a stream and pool, and other events
 * have the time of the latest reading. The events of an address, and those of the small or the large
 * blocks of a stream and pool, are in their order. Those of different ones may be exchanged between
 * two readings. cachalot_snapshot writes the events at any time. cachalot_trace_start replaces the
 * recorder on its device, until a call with the capacity 0.
 *   - Errors: INVALID_CONFIG; TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_recorder_start(const cachalot_allocator *allocator, const char *options);

/** The kind of an event of a trace. */
typedef int32_t cachalot_action;
/** The values of cachalot_action. */
enum {
  CACHALOT_ACTION_ALLOC = 1,          /**< A block was allocated; `bytes` are the requested bytes. */
  CACHALOT_ACTION_FREE_REQUESTED = 2, /**< The program freed a block. */
  CACHALOT_ACTION_FREE_COMPLETED = 3, /**< A block became free. */
  CACHALOT_ACTION_SEGMENT_ALLOC = 4,  /**< A segment was allocated from the driver. */
  CACHALOT_ACTION_SEGMENT_FREE = 5,   /**< A segment is released to the driver. */
  CACHALOT_ACTION_SEGMENT_MAP = 6,    /**< A part of an expandable segment was mapped. */
  CACHALOT_ACTION_SEGMENT_UNMAP = 7,  /**< A part of an expandable segment is unmapped. */
  CACHALOT_ACTION_OOM = 8,            /**< A request failed; `address` is the number of the device's free bytes. */
  CACHALOT_ACTION_SETTINGS_CHANGED = 9,    /**< `tune:auto` activated settings; `bytes` is the predicted peak. */
  CACHALOT_ACTION_SETTINGS_TAKEN_BACK = 10, /**< `tune:auto` took settings back; `bytes` is the measured peak. */
  CACHALOT_ACTION_SPILLED = 11 /**< Memory went to the host or came back; `bytes` of the host are mapped now. */
};

/** An event of a trace. */
typedef struct cachalot_trace_entry {
  size_t struct_size;     /**< The size in the library's version. */
  uint64_t address;       /**< The address. */
  uint64_t bytes;         /**< The length. */
  uint64_t stream_id;     /**< The library's number of the stream, as in cachalot_block. */
  uint64_t time_us;       /**< The time, in microseconds since 1970. */
  cachalot_action action; /**< The kind of the event. */
  uint32_t reserved;      /**< 0. */
} cachalot_trace_entry;

/** Receives an event of a trace. The event is valid until the callback returns. Returns 0 to
 * continue. */
typedef int (*cachalot_trace_visitor)(void *userdata, const cachalot_trace_entry *entry);

/** Calls `visit` with every recorded event, oldest first.
 *   - Errors: STOPPED. */
CACHALOT_API cachalot_status cachalot_visit_trace(const cachalot_allocator *allocator, int device,
                                                  cachalot_trace_visitor visit, void *userdata);

/** A call stack that a callback describes. Valid until the callback returns. */
typedef struct cachalot_stack cachalot_stack;
/** Describes the calling thread's stack with cachalot_stack_push. `action` is CACHALOT_ACTION_ALLOC or
 * CACHALOT_ACTION_FREE_REQUESTED. */
typedef void (*cachalot_stack_callback)(void *userdata, cachalot_stack *stack, cachalot_action action);

/** Sets the callback that describes call stacks of recorded events; NULL removes the callback.
 * While a trace is recorded, the callback runs once for each request and once for each free, on the
 * calling thread and before any lock is taken. A request without frames has no stack. A free
 * without frames has the stack of the request. Each different stack is stored once, until the
 * allocator is destroyed: at most 262,144 stacks, and 256 MiB of names. The rules of
 * cachalot_on_shortage apply. */
CACHALOT_API cachalot_status cachalot_on_stack(const cachalot_allocator *allocator, cachalot_stack_callback callback,
                                               void *userdata);

/** Adds the next frame to a stack, from the innermost outwards. Call it in the callback of
 * cachalot_on_stack only, with the callback's stack. The texts are copied; NULL means "". A stack
 * has at most 1024 frames; more calls have no effect. */
CACHALOT_API void cachalot_stack_push(cachalot_stack *stack, const char *function_name, const char *file_name,
                                      int line);

/** The format of a snapshot. */
typedef int32_t cachalot_format;
/** The values of cachalot_format. */
enum {
  CACHALOT_JSON = 1,  /**< JSON, with lists instead of tuples. */
  CACHALOT_PICKLE = 2 /**< Python's pickle, protocol 2, for torch's _memory_viz.py and pytorch.org/memory_viz. */
};

/** A flag of cachalot_snapshot: segments and blocks alone. The traces are empty. */
#define CACHALOT_WITHOUT_EVENTS 0x1u

/** The options of cachalot_snapshot. */
typedef struct cachalot_snapshot_options {
  size_t struct_size;     /**< sizeof(cachalot_snapshot_options). */
  const char *path;       /**< The file that gets the snapshot; NULL: `write` gets it. */
  cachalot_format format; /**< The format. 0: a pickle for a file, unless its name ends in .json; otherwise JSON. */
  uint32_t flags;         /**< CACHALOT_WITHOUT_EVENTS or 0. */
} cachalot_snapshot_options;
/** Initialises cachalot_snapshot_options. */
#define CACHALOT_SNAPSHOT_OPTIONS_INIT {sizeof(cachalot_snapshot_options), NULL, 0, 0}

/** Takes a snapshot: every segment and block, the traces and the settings, with the keys of
 * torch.cuda.memory._snapshot(). The snapshot goes to the file that `options` names, or else to
 * `write`, in parts of up to 64 KiB. NULL as `options` means CACHALOT_SNAPSHOT_OPTIONS_INIT. A
 * pickle has each stack once, and JSON has the stack at each event. Heaps are read one after
 * another, so an exact picture needs a program at rest.
 *
 * A regular file is replaced in one step after the snapshot is complete, and keeps its permissions.
 * Symbolic links are followed. A device or a FIFO is written, and never replaced.
 *   - Errors: STRUCT_SIZE; INVALID_ARGUMENT, also if there are both a path and `write`; STOPPED;
 *     IO: a regular file is then unchanged. */
CACHALOT_API cachalot_status cachalot_snapshot(const cachalot_allocator *allocator,
                                               const cachalot_snapshot_options *options, cachalot_writer write,
                                               void *userdata);

/** Explains an address at which a kernel has faulted, in English sentences: the block at or next to
 * the address, who holds the block, the streams that were announced for it, and its call stacks as
 * cachalot_on_stack describes them. The text and its length are written as by cachalot_get_config.
 * The library knows the blocks that the program holds or that still wait for work, and under
 * "guard" the blocks freed last, up to "quarantine" of them, with the addresses around. Works after
 * a fault has broken the context.
 *   - Errors: INVALID_POINTER, if nothing is known of the address; BUFFER_TOO_SMALL. */
CACHALOT_API cachalot_status cachalot_explain_address(const cachalot_allocator *allocator, const void *address,
                                                      char *buffer, size_t capacity, size_t *length);

/** Checks every invariant of every heap, for tests. The check visits every block.
 * CACHALOT_ERROR_PANIC names a broken invariant, and does not poison the allocator. */
CACHALOT_API cachalot_status cachalot_check_invariants(const cachalot_allocator *allocator);

#ifdef __cplusplus
}
#endif

#endif
