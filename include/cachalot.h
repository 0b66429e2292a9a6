/*
 * cachalot.h: the C interface of cachalot, a GPU memory allocator. This text is the contract; what is not in it is not
 * part of the interface. For C++ programs cachalot.hpp stands beside it.
 *
 *   cachalot_options options = CACHALOT_OPTIONS_INIT;
 *   cachalot_allocator *allocator = NULL;
 *   void *block = NULL;
 *   if (cachalot_create(&options, &allocator) != CACHALOT_OK) {
 *     fprintf(stderr, "%s\n", cachalot_last_error());
 *   }
 *   cachalot_malloc(allocator, 0, 1 << 20, stream, &block);
 *   ... launch kernels that use the block on `stream` ...
 *   cachalot_free(allocator, block);
 *
 * Ownership
 *   - An allocator belongs to whoever created it, until cachalot_destroy. Its handle is a number in the shape of a
 *     pointer: compare it and pass it on, never dereference it. Every function checks it, so a handle that was
 *     destroyed, or never was one, is an error and not a crash. cachalot_destroy(NULL) does nothing.
 *   - A block belongs to the program from cachalot_malloc to cachalot_free. Its address is one of device memory, which
 *     the host must not dereference either. Addresses are unique among the allocators of a process.
 *   - Texts and structures that a function takes are read during the call only. Texts that it returns belong to the
 *     library; each says how long they last.
 *   - A structure that begins with `struct_size` is told by its size: set the field to sizeof, as the _INIT macros do.
 *     So programs compiled with an older or a newer header than the library work: of a shorter structure the rest is
 *     taken for 0; of a longer one the rest must be 0 where the library reads, and is left alone where it writes.
 *   - Allocators share nothing, and there are no settings of the whole process.
 *
 * Threads
 *   - Every function may be called from any thread. Those that take `const cachalot_allocator *` may be called at the
 *     same time as any others. cachalot_destroy may not be called while another call of the same allocator is running.
 *   - Requests on different streams share no lock. No lock is held across a call of the driver that another stream's
 *     cached request would need, nor across a callback.
 *   - Callbacks run on the thread whose call led to them, and may call every function of the allocator but
 *     cachalot_destroy, which answers CACHALOT_ERROR_BUSY there. They must return: neither a C++ exception nor longjmp
 *     may leave one. Requests that they make lead to no further callbacks.
 *   - Signal handlers may call nothing here, and threads must not be cancelled inside.
 *
 * Errors
 *   - Functions that can fail return a cachalot_status: CACHALOT_OK, which is 0, or one of the CACHALOT_ERROR_ numbers,
 *     which stay what they are in every later version. New ones may come: treat an unknown number as a failure.
 *   - A call that fails has written nothing to the program's variables and has changed nothing that can be observed,
 *     but for segments that were given back to the driver in the attempt. There are no partial successes.
 *   - cachalot_last_error tells the calling thread in words what went wrong, cachalot_last_driver_code the driver's own
 *     code.
 *   - Mistakes of the program (100 to 199) are found before anything is changed and without a call of the driver. A
 *     double free is found until the address is handed out again: from then on it cannot be told from a correct one.
 *   - The first error that loses the CUDA context is remembered: later calls that need the driver answer
 *     CACHALOT_ERROR_CONTEXT_LOST without calling it.
 *   - A fault of the library itself is CACHALOT_ERROR_PANIC and poisons that one allocator, which answers
 *     CACHALOT_ERROR_POISONED from then on; others go on working. (A library that was built to abort on panics ends the
 *     process instead.)
 *
 * Streams
 *   - A cachalot_stream is a cudaStream_t or CUstream: the same type under another name. NULL and cudaStreamLegacy are
 *     the legacy default stream, cudaStreamPerThread is the calling thread's own.
 *   - A block is allocated for one stream, in whose order it may be used at once. It is freed when its last use on that
 *     stream has been queued, not when it is done: the next block at its address goes to the same stream, behind that
 *     use.
 *   - Work on other streams that uses a block is announced with cachalot_record_stream, after it was queued and before
 *     the block is freed; the block is then kept until that work is done. How the other stream knows that the block's
 *     contents are ready is the program's affair (an event, and cudaStreamWaitEvent), as with cudaMalloc.
 *   - The driver gives the handle of a destroyed stream to a new one. Call cachalot_stream_destroyed before
 *     cudaStreamDestroy, or create the allocator with CACHALOT_ASK_STREAM_ID, which costs some 30 ns a call and needs a
 *     driver of CUDA 12.0. A thread that used cudaStreamPerThread calls it for that stream before the thread ends.
 *     Memory cached for streams that end without a report is released when memory is short, by cachalot_empty_cache, or,
 *     once more than 64 streams have memory, when a stream has requested nothing while their number grew by half.
 *   - Contents of a new block are unspecified and may be those of an earlier one of the same allocator.
 *
 * Capture
 *   - Every function may be called while streams capture a graph, in every capture mode; none becomes part of the
 *     graph.
 *   - Memory that a graph uses must stay its own as long as the graph can be launched: capture with the requests led
 *     into a private pool, between cachalot_capture_begin and cachalot_capture_end, and give the pool up with
 *     cachalot_pool_release once the graph was destroyed.
 *   - Blocks that other streams use and that are freed during a capture are kept until it ends; if no
 *     cachalot_capture_begin told of it, those that a capturing stream uses. What is free of a capturing stream's expandable
 *     segments stays mapped until then.
 *
 * Fork
 *   - CUDA does not survive a fork. In a child of the process that created the first allocator, cachalot_create and
 *     every function that takes an allocator answer CACHALOT_ERROR_FORKED, take no lock and call no driver. The parent
 *     is not affected. A child that calls exec at once, or never uses the library, is fine.
 *
 * Shutdown
 *   - Nothing is called when the process or a thread ends: memory goes back with the process. To destroy an allocator
 *     before is optional, and only sound while the driver works; functions that run at exit may find it gone. Calls
 *     that reach a driver which says so answer CACHALOT_ERROR_SHUTDOWN.
 *   - The library never unloads the driver, and must not be unloaded itself while an allocator exists.
 *
 * Versioning
 *   - CACHALOT_VERSION is the version of this header, cachalot_version that of the library. Within a major version
 *     (before 1.0: within a minor one) programs need not be compiled anew, and the shared library keeps its SONAME.
 *   - What came after 0.1 says `Since`. What is declared under CACHALOT_EXPERIMENTAL may change at any time.
 *
 * In the descriptions below `Driver:` says when a call reaches the driver, which it else never does. What reaches it
 * can fail with 300 to 399. `Errors:` names others, without CACHALOT_ERROR_, beside those that every function with an
 * allocator has (NULL, INVALID_HANDLE, POISONED, FORKED, PANIC) and every one with a device (UNKNOWN_DEVICE). Sizes are
 * in bytes.
 *
 * C11, C17, C++17 and later.
 */
#ifndef CACHALOT_H
#define CACHALOT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CACHALOT_VERSION_MAJOR 0
#define CACHALOT_VERSION_MINOR 1
#define CACHALOT_VERSION_PATCH 0

/* One number that grows with every version: 1002003 is 1.2.3. */
#define CACHALOT_VERSION (CACHALOT_VERSION_MAJOR * 1000000 + CACHALOT_VERSION_MINOR * 1000 + CACHALOT_VERSION_PATCH)

#if defined(__GNUC__)
#define CACHALOT_API __attribute__((visibility("default")))
#define CACHALOT_CHECKED CACHALOT_API __attribute__((warn_unused_result))
#else
#define CACHALOT_API
#define CACHALOT_CHECKED CACHALOT_API
#endif

/* ---- Types ---- */

/* The outcome of a call: one of the numbers that follow. A plain integer: those of later versions are values too. */
typedef int32_t cachalot_status;

enum {
  CACHALOT_OK = 0,                       /* it worked */
  /* 100 to 199: a mistake of the program. Nothing was changed and the driver was not called. */
  CACHALOT_ERROR_NULL = 110,             /* a pointer that is needed is NULL */
  CACHALOT_ERROR_STRUCT_SIZE = 114,      /* struct_size is out of range, or what lies beyond the known part is not 0 */
  CACHALOT_ERROR_INVALID_HANDLE = 120,   /* not an allocator, or one that was destroyed */
  CACHALOT_ERROR_POISONED = 124,         /* an earlier call of this allocator ended in CACHALOT_ERROR_PANIC */
  CACHALOT_ERROR_BUSY = 128,             /* cachalot_destroy was called from a callback of the same allocator */
  CACHALOT_ERROR_UNKNOWN_DEVICE = 132,   /* the allocator has no device of this number */
  CACHALOT_ERROR_INVALID_POINTER = 136,  /* the program holds no block there */
  CACHALOT_ERROR_WRONG_SIZE = 140,       /* the block was requested with another size */
  CACHALOT_ERROR_TOO_LARGE = 144,        /* no device could ever have so much: 1 EiB and more, rounded */
  CACHALOT_ERROR_INVALID_STREAM = 148,   /* no stream can have this handle */
  CACHALOT_ERROR_UNKNOWN_POOL = 152,     /* the device has no such private pool, or it was released */
  CACHALOT_ERROR_NOT_ROUTED = 156,       /* the pool is not being allocated to, or captured into */
  CACHALOT_ERROR_INVALID_CONFIG = 160,   /* the configuration string cannot be understood, or is not UTF-8 */
  CACHALOT_ERROR_INVALID_FRACTION = 164, /* a fraction outside of 0 to 1 */
  CACHALOT_ERROR_UNKNOWN_KEY = 168,      /* no statistic has this name */
  CACHALOT_ERROR_INVALID_ARGUMENT = 172, /* flags, or another argument, that mean nothing */
  CACHALOT_ERROR_BUFFER_TOO_SMALL = 176, /* the text does not fit */
  /* 200 to 299: something has run out. */
  CACHALOT_ERROR_OUT_OF_MEMORY = 210,    /* device memory, after everything that could be given back was */
  CACHALOT_ERROR_REJECTED = 214,         /* device memory, by `throw_on_cudamalloc_oom`, with nothing given back */
  CACHALOT_ERROR_TABLE_FULL = 220,       /* the host's memory, or a table of the library */
  CACHALOT_ERROR_STILL_HELD = 230,       /* cachalot_destroy: what was in use was not given back */
  /* 300 to 399: the driver. */
  CACHALOT_ERROR_NO_DRIVER = 310,        /* there is no CUDA driver, or it did not start */
  CACHALOT_ERROR_DRIVER_TOO_OLD = 314,   /* the driver is older than CUDA 11.4, or lacks a function */
  CACHALOT_ERROR_DRIVER = 320,           /* the driver refused; see cachalot_last_driver_code */
  CACHALOT_ERROR_UNSUPPORTED = 330,      /* this device or driver cannot do it */
  CACHALOT_ERROR_CAPTURING = 340,        /* not possible while a stream captures a graph */
  CACHALOT_ERROR_CONTEXT_LOST = 350,     /* the CUDA context is lost, as by a fault in a kernel */
  CACHALOT_ERROR_SHUTDOWN = 354,         /* the driver is shutting down */
  CACHALOT_ERROR_FORKED = 358,           /* this is a forked child process */
  /* 400 to 499: the host. */
  CACHALOT_ERROR_IO = 410,               /* a file could not be written */
  CACHALOT_ERROR_STOPPED = 420,          /* a callback asked to stop */
  /* 900 to 999: the library. */
  CACHALOT_ERROR_PANIC = 910             /* a fault inside the library; the allocator is poisoned */
};

/* An allocator. Opaque; see Ownership. */
typedef struct cachalot_allocator cachalot_allocator;

/* A stream of CUDA: cudaStream_t and CUstream are the same type. On simulated devices any number. */
typedef struct CUstream_st *cachalot_stream;

/* The name of a private pool on its device. {0, 0} is the default pool, which everything else comes from. */
typedef struct cachalot_pool {
  uint64_t first;
  uint64_t second;
} cachalot_pool;

/* Asks the program to free memory: no cached block can serve a request of `bytes` on `device`. Returns whether anything
 * was freed (not 0), in which case the cache is searched again before the driver is asked. */
typedef int (*cachalot_shortage_callback)(void *userdata, int device, size_t bytes);

struct cachalot_oom_report;
/* Tells the program that a request is about to fail. The report lasts until the callback returns. */
typedef void (*cachalot_oom_callback)(void *userdata, const struct cachalot_oom_report *report);

/* Receives one statistic. The key lasts until the callback returns. Returns 0 to go on. */
typedef int (*cachalot_stat_visitor)(void *userdata, const char *key, int64_t value);

struct cachalot_trace_entry;
/* Receives one event of the trace, which lasts until the callback returns. Returns 0 to go on. */
typedef int (*cachalot_trace_visitor)(void *userdata, const struct cachalot_trace_entry *entry);

/* Receives the next part of a text, not ended by NUL. Returns 0 to go on. */
typedef int (*cachalot_writer)(void *userdata, const char *text, size_t bytes);

/* Flags of cachalot_options. */
#define CACHALOT_SIMULATED 0x1u     /* simulated devices: decisions only, no memory behind them */
#define CACHALOT_NO_CACHING 0x2u    /* every request and free goes to the driver: for memory checkers */
#define CACHALOT_ASK_STREAM_ID 0x4u /* the driver is asked which stream a handle is; see Streams */
#define CACHALOT_PEER_ACCESS 0x8u   /* devices that can reach each other's memory may */
#define CACHALOT_ENVIRONMENT 0x10u  /* PYTORCH_ALLOC_CONF, else PYTORCH_CUDA_ALLOC_CONF, comes before `config` */
#define CACHALOT_OPEN_LATER 0x20u   /* a device gets its context when it is first allocated from; not with PEER_ACCESS */

/* How an allocator is made. CACHALOT_OPTIONS_INIT asks for every device, with the default settings.
 * The policy is one of the settings, by name: "policy:bfc", "policy:slab,largest_object_kb:64". The names are caching (the
 * default), bfc, buddy, size_class, slab, direct and planned, which comes before another one: "policy:planned,fallback:bfc";
 * see Plans. A wrong name, and a key that the policy does not have, are answered with INVALID_CONFIG, and
 * cachalot_last_error lists what is accepted. docs/configuration.md lists every setting. */
typedef struct cachalot_options {
  size_t struct_size;       /* sizeof(cachalot_options) */
  uint32_t flags;           /* CACHALOT_SIMULATED and its neighbours */
  uint32_t device_count;    /* how many devices, 127 at most; 0: all of the driver's, or one simulated */
  const int *devices;       /* the driver's numbers; the allocator's device i is devices[i]. NULL: 0, 1, 2 ... */
  void *const *contexts;    /* the CUcontext to work in on each, kept alive; NULL: its primary one */
  const char *config;       /* settings in the syntax of PYTORCH_CUDA_ALLOC_CONF; NULL: the defaults */
  uint64_t limit_bytes;     /* the most that may be held of each device; 0: no limit */
  uint64_t simulated_bytes; /* memory of each simulated device; 0: 16 GiB */
} cachalot_options;

/* No limit, for cachalot_set_limit. */
#define CACHALOT_NO_LIMIT UINT64_MAX

/* Flags of a private pool. */
#define CACHALOT_POOL_USE_ON_OOM 0x1u /* requests of the default pool may take its free blocks rather than fail */
#define CACHALOT_POOL_NO_SPLIT 0x2u   /* each request gets a segment of its own, or one that was given back whole */

/* Which requests are led into a pool. */
typedef int32_t cachalot_route;
enum {
  CACHALOT_ROUTE_ALL = 1,    /* every one of the device */
  CACHALOT_ROUTE_STREAM = 2, /* those on one stream */
  CACHALOT_ROUTE_THREAD = 3  /* those of the calling thread */
};

/* A block that the program holds. */
typedef struct cachalot_block {
  size_t struct_size;     /* sizeof(cachalot_block) */
  void *base;             /* its first byte */
  size_t bytes;           /* its length: at least what was requested */
  size_t requested_bytes; /* what was requested */
  uint64_t stream_id;     /* the allocator's number of its stream; the low 48 bits are the handle */
  void *segment_base;     /* the first byte of its segment: of the driver's own allocation */
  size_t segment_bytes;   /* the length of that */
  int device;             /* its device */
  uint32_t reserved;      /* 0 */
} cachalot_block;

/* What a request would do first. */
typedef int32_t cachalot_outcome;
enum {
  CACHALOT_WOULD_HIT = 1,     /* hand out the block at `address`, from the cache or a plan; NULL for 0 bytes */
  CACHALOT_WOULD_OBTAIN = 2,  /* ask the driver for `bytes` */
  CACHALOT_WOULD_EXPAND = 3,  /* map more memory into an expandable segment */
  CACHALOT_WOULD_RELEASE = 4, /* give cached memory back, that at `address` first, and then ask the driver */
  CACHALOT_WOULD_FAIL = 5     /* fail: the limit does not allow it, and nothing can be given back */
};

/* The answer of cachalot_forecast. */
typedef struct cachalot_outlook {
  size_t struct_size; /* sizeof(cachalot_outlook) */
  void *address;      /* see cachalot_outcome; else NULL */
  size_t bytes;       /* see cachalot_outcome; else 0 */
  cachalot_outcome outcome;
  uint32_t reserved; /* 0 */
} cachalot_outlook;

/* One quantity over time. */
typedef struct cachalot_counter {
  int64_t current;   /* how much there is now */
  int64_t peak;      /* the most there was since the peaks were reset */
  int64_t allocated; /* how much was added since the accumulated statistics were reset */
  int64_t freed;     /* how much was taken away since then */
} cachalot_counter;

/* The statistics of one device. The same numbers, and more, can be had by name: cachalot_stat. */
typedef struct cachalot_statistics {
  size_t struct_size;                    /* sizeof(cachalot_statistics) */
  cachalot_counter allocations;          /* blocks that the program holds */
  cachalot_counter allocated_bytes;      /* bytes of those */
  cachalot_counter active_blocks;        /* blocks held, or freed and still used by other streams */
  cachalot_counter active_bytes;         /* bytes of those */
  cachalot_counter requested_bytes;      /* bytes that the program asked for, of active blocks */
  cachalot_counter inactive_split_bytes; /* bytes of cached blocks that are parts of segments in use: fragmentation */
  cachalot_counter segments;             /* segments held from the driver */
  cachalot_counter reserved_bytes;       /* bytes of those */
  uint64_t device_allocs;                /* calls that obtained memory from the driver */
  uint64_t device_frees;                 /* calls that gave memory back */
  uint64_t alloc_retries;                /* requests for which the whole cache was given back */
  uint64_t ooms;                         /* requests that failed for want of memory */
  uint64_t leaked_bytes;                 /* bytes whose release failed: in doubt, never handed out again */
} cachalot_statistics;

/* How far the planned policy is. */
typedef int32_t cachalot_stage;
enum {
  CACHALOT_STAGE_WAITING = 1,   /* the next iteration will be observed; another policy is always here */
  CACHALOT_STAGE_OBSERVING = 2, /* this one is */
  CACHALOT_STAGE_PLANNING = 3,  /* it is being planned, in the background */
  CACHALOT_STAGE_READY = 4,     /* the next announcement puts the plan in force */
  CACHALOT_STAGE_SERVING = 5    /* it is in force */
};

/* What the planned policy has come to on one device. Every count is since the allocator was made. */
typedef struct cachalot_plan_report {
  size_t struct_size;         /* sizeof(cachalot_plan_report) */
  uint64_t announced;         /* iterations */
  uint64_t plans;             /* plans that came into force */
  uint64_t given_up;          /* plans that were given up because too much deviated */
  uint64_t no_memory;         /* how often a plan could not come into force for want of memory */
  uint64_t peak_bytes;        /* what the plan in force, or the last one, needs, all streams together */
  uint64_t lower_bound_bytes; /* what any plan for the same requests needs */
  uint64_t segment_bytes;     /* what is held for the plan in force */
  uint64_t served;            /* requests that plans have served */
  uint64_t lasting;           /* requests that outlive their iteration, as observed: the fallback's, and no deviation */
  uint64_t extra;             /* requests that the plan does not have thereabouts: the fallback's */
  uint64_t missing;           /* requests that the plan has, and that were not made */
  uint64_t reordered;         /* requests that came later than in the plan, and were served */
  uint64_t occupied;          /* requests whose bytes were not free yet: the fallback's */
  cachalot_stage stage;
  uint32_t reserved;          /* 0 */
} cachalot_plan_report;

/* Why a request failed. */
typedef struct cachalot_oom_report {
  size_t struct_size;                    /* by the library's header: check it before reading later additions */
  const char *text;                      /* all of it in words, as cachalot_last_error will tell */
  size_t requested_bytes;                /* what the program asked for */
  size_t block_bytes;                    /* the block that would have served it */
  size_t segment_bytes;                  /* what would have been asked of the driver for it */
  uint64_t device_total_bytes;           /* the device's memory; 0: the driver did not tell */
  uint64_t device_free_bytes;            /* how much of it nobody uses */
  uint64_t process_bytes;                /* how much this process uses, whoever obtained it; 0: not known */
  uint64_t limit_bytes;                  /* the most that may be held; CACHALOT_NO_LIMIT: no limit */
  uint64_t allocated_bytes;              /* held by the program */
  uint64_t reserved_bytes;               /* held from the driver */
  uint64_t pending_bytes;                /* freed, but still used by other streams */
  uint64_t private_free_bytes;           /* free in private pools */
  uint64_t largest_free_bytes;           /* the largest free block of the request's stream and pool */
  uint64_t largest_free_elsewhere_bytes; /* the largest free block of others */
  int device;                            /* the device */
  int capturing;                         /* 1: the stream was capturing, so nothing could be given back; else 0 */
} cachalot_oom_report;

/* What happened, in a trace. */
typedef int32_t cachalot_action;
enum {
  CACHALOT_ACTION_ALLOC = 1,          /* a block was handed out; `bytes` as requested */
  CACHALOT_ACTION_FREE_REQUESTED = 2, /* the program gave a block up */
  CACHALOT_ACTION_FREE_COMPLETED = 3, /* a block became free */
  CACHALOT_ACTION_SEGMENT_ALLOC = 4,  /* a segment was obtained */
  CACHALOT_ACTION_SEGMENT_FREE = 5,   /* a segment is given back */
  CACHALOT_ACTION_SEGMENT_MAP = 6,    /* a part of an expandable segment was mapped */
  CACHALOT_ACTION_SEGMENT_UNMAP = 7,  /* a part of an expandable segment is unmapped */
  CACHALOT_ACTION_OOM = 8             /* a request failed; `address` is how many bytes the device has free */
};

/* One event of a trace. */
typedef struct cachalot_trace_entry {
  size_t struct_size;     /* by the library's header */
  uint64_t address;       /* where */
  uint64_t bytes;         /* how many */
  uint64_t stream_id;     /* on which stream, see cachalot_block */
  uint64_t time_us;       /* when: microseconds since 1970 */
  cachalot_action action; /* what */
  uint32_t reserved;      /* 0 */
} cachalot_trace_entry;

/* A stack that is being described. Opaque; lasts until the callback that got it returns. */
typedef struct cachalot_stack cachalot_stack;
/* Describes the calling thread's stack with cachalot_stack_push. `action` says what happens there:
 * CACHALOT_ACTION_ALLOC, or CACHALOT_ACTION_FREE_REQUESTED. */
typedef void (*cachalot_stack_callback)(void *userdata, cachalot_stack *stack, cachalot_action action);

/* How a snapshot is written. */
typedef int32_t cachalot_format;
enum {
  CACHALOT_JSON = 1,  /* JSON, with lists in the place of tuples */
  CACHALOT_PICKLE = 2 /* as Python pickles it, in protocol 2: for torch's _memory_viz.py and pytorch.org/memory_viz */
};

/* One device as it stands. */
typedef struct cachalot_device {
  size_t struct_size;      /* sizeof(cachalot_device) */
  uint64_t total_bytes;    /* its memory */
  uint64_t free_bytes;     /* how much of it no process uses */
  uint64_t process_bytes;  /* how much this process uses, whoever obtained it; 0: not known */
  uint64_t reserved_bytes; /* how much this allocator holds */
  uint64_t limit_bytes;    /* the most that it may hold; CACHALOT_NO_LIMIT: no limit */
  uint64_t leaked_bytes;   /* see cachalot_statistics */
  int ordinal;             /* the driver's number of the device */
  int simulated;           /* 1: a simulated device; 0: one of CUDA */
  int virtual_memory;      /* 1: segments can be expandable; 0: they cannot */
  uint32_t reserved;       /* 0 */
} cachalot_device;

/* Initialisers: the size, and 0 for everything else. */
#define CACHALOT_OPTIONS_INIT {sizeof(cachalot_options), 0, 0, NULL, NULL, NULL, 0, 0}
#define CACHALOT_BLOCK_INIT {sizeof(cachalot_block), NULL, 0, 0, 0, NULL, 0, 0, 0}
#define CACHALOT_OUTLOOK_INIT {sizeof(cachalot_outlook), NULL, 0, 0, 0}
#define CACHALOT_DEVICE_INIT {sizeof(cachalot_device), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
#define CACHALOT_STATISTICS_INIT                                                                                       \
  {sizeof(cachalot_statistics),                                                                                        \
   {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0},     \
   0, 0, 0, 0, 0}
#define CACHALOT_PLAN_REPORT_INIT {sizeof(cachalot_plan_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* ---- The library ---- */

/* The version of the library, as CACHALOT_VERSION is that of the header. */
CACHALOT_API uint32_t cachalot_version(void);

/* The same as a text, "1.2.3". Lasts for ever. */
CACHALOT_API const char *cachalot_version_string(void);

/* The name of a status, "CACHALOT_ERROR_NULL"; "CACHALOT_ERROR_UNKNOWN" for a number that is none. Lasts for ever. */
CACHALOT_API const char *cachalot_status_name(cachalot_status status);

/* What a status means, in a few words. Lasts for ever. */
CACHALOT_API const char *cachalot_status_text(cachalot_status status);

/* What went wrong in the calling thread's latest call that failed, in words, 4095 bytes at most; "" if none has. For
 * CACHALOT_ERROR_OUT_OF_MEMORY the whole report. Lasts until the thread's next call that fails, or its end. */
CACHALOT_API const char *cachalot_last_error(void);

/* The driver's own code (a CUresult) in that same failure; 0 if the driver had no part in it. */
CACHALOT_API uint32_t cachalot_last_driver_code(void);

/* ---- Allocators ---- */

/* Makes an allocator and writes its handle to `out`. `options` may be NULL, which means CACHALOT_OPTIONS_INIT. 1024
 * allocators can exist at a time. No memory is obtained yet, and none is obtained beyond what requests need.
 * Driver: loads and starts it, and makes or retains a context on each device (0.1 s and more for the first).
 * Errors: STRUCT_SIZE, INVALID_ARGUMENT, INVALID_CONFIG, UNKNOWN_DEVICE, NO_DRIVER, DRIVER_TOO_OLD, TABLE_FULL. */
CACHALOT_CHECKED cachalot_status cachalot_create(const cachalot_options *options, cachalot_allocator **out);

/* Ends an allocator: waits for frees that are pending, gives its memory back to the driver, then its contexts. The
 * handle is invalid from then on, whatever is returned, except after BUSY and FORKED. NULL is none, and fine. No other
 * call of the same allocator may be running. Blocks that the program still holds, and private pools that still have
 * users, keep their memory, so that work that uses them goes on: STILL_HELD says so, and the memory goes back with the
 * process.
 * Driver: yes, and it waits for the device.
 * Errors: STILL_HELD, BUSY; POISONED, in which case nothing is given back. */
CACHALOT_API cachalot_status cachalot_destroy(cachalot_allocator *allocator);

/* Puts settings in force on every device, as PyTorch does at run time: max_split_size_mb, max_non_split_rounding_mb,
 * garbage_collection_threshold and roundup_power2_divisions fall back to their defaults unless `config` names them; all
 * others stay as they are unless named. Blocks and segments stay as they are.
 * Driver: only if `config` names per_process_memory_fraction.
 * Errors: INVALID_CONFIG. */
CACHALOT_API cachalot_status cachalot_configure(const cachalot_allocator *allocator, const char *config);

/* Writes the settings in force, in the same syntax and ended by NUL, to the `capacity` bytes at `buffer`, and their
 * length without the NUL to `length`. Either may be NULL (with a capacity of 0), so that the length can be asked for
 * first.
 * Errors: BUFFER_TOO_SMALL. */
CACHALOT_API cachalot_status cachalot_config(const cachalot_allocator *allocator, int device, char *buffer,
                                             size_t capacity, size_t *length);

/* How many devices the allocator has; they are numbered from 0. */
CACHALOT_API cachalot_status cachalot_device_count(const cachalot_allocator *allocator, int *out);

/* Describes a device.
 * Driver: yes (about 5 us; the first time it may load the management library, some ms).
 * Errors: STRUCT_SIZE. */
CACHALOT_API cachalot_status cachalot_device_info(const cachalot_allocator *allocator, int device,
                                                  cachalot_device *out);

/* Whether the device can still be used: CACHALOT_OK, or what lost it, with the driver's code of that time.
 * Errors: CONTEXT_LOST, SHUTDOWN. */
CACHALOT_API cachalot_status cachalot_health(const cachalot_allocator *allocator, int device);

/* Lets work on device `peer` use the memory of `device`, what was obtained and what will be. One direction; twice is
 * fine.
 * Driver: yes.
 * Errors: UNSUPPORTED if the devices cannot reach each other. */
CACHALOT_API cachalot_status cachalot_enable_peer_access(const cachalot_allocator *allocator, int device, int peer);

/* ---- Memory ---- */

/* Obtains a block of at least `bytes` on `device`, aligned to 512 (with `policy:bfc` to 256), usable on `stream` at
 * once, and writes its address to `out`. For 0 bytes that is NULL.
 * Driver: if no cached block fits, or frees are pending; never to hand out a cached block.
 * Errors: OUT_OF_MEMORY, REJECTED, TOO_LARGE, INVALID_STREAM, TABLE_FULL. */
CACHALOT_CHECKED cachalot_status cachalot_malloc(const cachalot_allocator *allocator, int device, size_t bytes,
                                                 cachalot_stream stream, void **out);

/* Gives a block back, on its own stream's order: its last use there has been queued. NULL is none, and fine.
 * Driver: records an event for each other stream that was recorded; else never.
 * Errors: INVALID_POINTER (foreign, interior, freed before), TABLE_FULL. The block is the program's still. */
CACHALOT_API cachalot_status cachalot_free(const cachalot_allocator *allocator, void *block);

/* As cachalot_free, if the block was requested with exactly `bytes`.
 * Errors: WRONG_SIZE, and those of cachalot_free. */
CACHALOT_API cachalot_status cachalot_free_sized(const cachalot_allocator *allocator, void *block, size_t bytes);

/* Announces that work queued on `stream` uses the block: once freed, it is not reused before that work is done. Nothing
 * for the block's own stream, and for NULL.
 * Driver: only while a graph is being captured.
 * Errors: INVALID_POINTER, INVALID_STREAM, TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_record_stream(const cachalot_allocator *allocator, void *block,
                                                    cachalot_stream stream);

/* Says that a stream of `device` is about to be destroyed; called before cudaStreamDestroy. Its work need not be done.
 * What is cached for it on any device goes back to the driver. Blocks of it that the program holds stay valid and are
 * freed as usual; their memory goes back before a later request obtains more from the driver.
 * For cudaStreamPerThread it says that the calling thread is about to end. A thread that goes on may use that stream again.
 * Driver: yes.
 * Errors: INVALID_STREAM, also for the legacy default stream, which cannot be destroyed; TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_stream_destroyed(const cachalot_allocator *allocator, int device,
                                                       cachalot_stream stream);

/* Describes the block that contains `address`, which may lie anywhere in it.
 * Errors: INVALID_POINTER, STRUCT_SIZE. */
CACHALOT_API cachalot_status cachalot_base_of(const cachalot_allocator *allocator, const void *address,
                                              cachalot_block *out);

/* What cachalot_malloc would do first if it were called now, under every policy: the block that is named is the one that it
 * would hand out. Changes nothing. Frees that are pending count as pending, though cachalot_malloc would ask after them; whether
 * the driver would give what it is asked for is not known before it is asked.
 * Driver: only while a graph is being captured, and to tell whether a stream captures whose memory would be unmapped.
 * Errors: TOO_LARGE, INVALID_STREAM, STRUCT_SIZE, TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_forecast(const cachalot_allocator *allocator, int device, size_t bytes,
                                               cachalot_stream stream, cachalot_outlook *out);

/* ---- The cache ---- */

/* Makes blocks that other streams no longer use available. cachalot_malloc does so by itself.
 * Driver: if frees are pending.
 * Errors: TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_process_events(const cachalot_allocator *allocator, int device);

/* Waits for pending frees, then gives every segment without blocks in use back, but for those of private pools with
 * users.
 * Driver: yes, and it waits for the streams. What can be given back is, even if some of it fails.
 * Errors: TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_empty_cache(const cachalot_allocator *allocator, int device);

/* Gives such segments back, the largest first, until at most `keep_bytes` are held or none is left. Does not wait for
 * pending frees.
 * Driver: if anything is given back.
 * Errors: TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_trim(const cachalot_allocator *allocator, int device, size_t keep_bytes);

/* Turns the cache off (0) or on. Off, every request and every free goes to the driver. Blocks handed out before stay
 * valid. */
CACHALOT_API cachalot_status cachalot_set_caching(const cachalot_allocator *allocator, int device, int on);

/* Sets the most that may be held of a device, or CACHALOT_NO_LIMIT. What is held beyond is not given back:
 * cachalot_trim. */
CACHALOT_API cachalot_status cachalot_set_limit(const cachalot_allocator *allocator, int device, uint64_t bytes);

/* Sets the limit to a part of the device's memory, 0 to 1; 1 is no limit.
 * Driver: asks how much that is.
 * Errors: INVALID_FRACTION. */
CACHALOT_API cachalot_status cachalot_set_memory_fraction(const cachalot_allocator *allocator, int device,
                                                          double fraction);

/* ---- Plans ---- */

/* Announces that an iteration ends, and the next begins: a training step, an inference. Under "policy:planned" one iteration
 * is observed, the sizes requested on each stream in order and when each block is freed; it is planned on a thread of the
 * library's own, for at most `plan_deadline_ms` (2000); and the next announcement puts the plan in force. From then on a
 * request that is the next of its stream's sequence is given its planned place in one segment, without a search. Everything
 * else is the fallback's (`fallback`, caching by default): what outlives its iteration, what deviates in size or order, what
 * would lie where a block is freed later than it was, and what is led into a private pool or requested while a graph is
 * captured. So nothing depends on the program repeating itself.
 * Streams share no bytes of a plan. A block that other streams use (cachalot_record_stream) keeps its bytes to itself to the
 * end of its iteration, and further until they are done. If more than a quarter of the requests deviate in iteration after
 * iteration, the plan is given up, and an iteration is observed anew.
 * Under another policy it does nothing. Other threads may go on allocating: what they do meanwhile is of one iteration or
 * of the other.
 * Driver: asks after pending frees; when a plan comes into force gives back what is cached and obtains a segment for each
 * stream, when it is given up gives those back. Without memory for it everything stays as it is until the next announcement.
 * Nothing is called while a graph is captured. */
CACHALOT_API cachalot_status cachalot_iteration(const cachalot_allocator *allocator, int device);

/* What the planned policy has come to. Under another policy the stage is CACHALOT_STAGE_WAITING and the rest 0. */
CACHALOT_API cachalot_status cachalot_planned(const cachalot_allocator *allocator, int device,
                                              cachalot_plan_report *out);

/* ---- Private pools and graphs ---- */

/* Makes a private pool with one user, the caller, and writes its name to `out`.
 * Errors: INVALID_ARGUMENT, TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_pool_create(const cachalot_allocator *allocator, int device, uint32_t flags,
                                                  cachalot_pool *out);

/* Adds a user to a pool. One of a name of the program's own is made, with these flags, if there is none; else they
 * count for nothing.
 * Errors: INVALID_ARGUMENT (flags, or the default pool), TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_pool_retain(const cachalot_allocator *allocator, int device, cachalot_pool pool,
                                                  uint32_t flags);

/* Takes a user away. The memory of a pool without users goes back with the rest of the cache, and its name is forgotten
 * then.
 * Errors: UNKNOWN_POOL. */
CACHALOT_API cachalot_status cachalot_pool_release(const cachalot_allocator *allocator, int device, cachalot_pool pool);

/* How many users a pool has.
 * Errors: UNKNOWN_POOL. */
CACHALOT_API cachalot_status cachalot_pool_users(const cachalot_allocator *allocator, int device, cachalot_pool pool,
                                                 uint32_t *out);

/* As cachalot_empty_cache, for one pool without users only.
 * Driver: yes.
 * Errors: UNKNOWN_POOL. */
CACHALOT_API cachalot_status cachalot_pool_empty(const cachalot_allocator *allocator, int device, cachalot_pool pool);

/* Leads requests into a pool from here on, before any route in force already. The pool gains a user, who stays beyond
 * cachalot_pool_end, until cachalot_pool_release. `stream` counts with CACHALOT_ROUTE_STREAM only.
 * Errors: UNKNOWN_POOL, INVALID_ARGUMENT, INVALID_STREAM, TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_pool_begin(const cachalot_allocator *allocator, int device, cachalot_pool pool,
                                                 cachalot_route route, cachalot_stream stream);

/* Ends the latest such route into the pool.
 * Errors: UNKNOWN_POOL, NOT_ROUTED. */
CACHALOT_API cachalot_status cachalot_pool_end(const cachalot_allocator *allocator, int device, cachalot_pool pool);

/* As cachalot_pool_begin, for a graph that is captured meanwhile; called before or after the capture begins. The user
 * it adds is the graph: release it when the graph has been destroyed.
 * Errors: those of cachalot_pool_begin. */
CACHALOT_API cachalot_status cachalot_capture_begin(const cachalot_allocator *allocator, int device, cachalot_pool pool,
                                                    cachalot_route route, cachalot_stream stream);

/* The capture into the pool has ended; called before or after cudaStreamEndCapture.
 * Errors: UNKNOWN_POOL, NOT_ROUTED. */
CACHALOT_API cachalot_status cachalot_capture_end(const cachalot_allocator *allocator, int device, cachalot_pool pool);

/* ---- Statistics ---- */

/* The statistics of a device. Peaks are exact but for calls that overlap in time, of which one may be missing until the
 * next; numbers that change meanwhile are of slightly different moments.
 * Errors: STRUCT_SIZE. */
CACHALOT_API cachalot_status cachalot_stats(const cachalot_allocator *allocator, int device, cachalot_statistics *out);

/* One of them by its name in torch.cuda.memory_stats(), flattened: "reserved_bytes.all.peak".
 * Errors: UNKNOWN_KEY. */
CACHALOT_API cachalot_status cachalot_stat(const cachalot_allocator *allocator, int device, const char *key,
                                           int64_t *out);

/* Calls `visit` with each of those names and its value, in a fixed order.
 * Errors: STOPPED. */
CACHALOT_API cachalot_status cachalot_stats_for_each(const cachalot_allocator *allocator, int device,
                                                     cachalot_stat_visitor visit, void *userdata);

/* Every peak becomes what there is now. */
CACHALOT_API cachalot_status cachalot_reset_peaks(const cachalot_allocator *allocator, int device);

/* What was ever added or taken away counts as 0 from here on, as do the counts of events. */
CACHALOT_API cachalot_status cachalot_reset_accumulated(const cachalot_allocator *allocator, int device);

/* ---- Callbacks ---- */

/* Sets who is asked to free memory before more is obtained; NULL: nobody. A call under way elsewhere may still use the
 * one before for a moment. For what a callback may do, see Threads. */
CACHALOT_API cachalot_status cachalot_on_shortage(const cachalot_allocator *allocator,
                                                  cachalot_shortage_callback callback, void *userdata);

/* Sets who is told that a request is about to fail for want of memory; NULL: nobody. Otherwise as
 * cachalot_on_shortage. */
CACHALOT_API cachalot_status cachalot_on_out_of_memory(const cachalot_allocator *allocator,
                                                       cachalot_oom_callback callback, void *userdata);

/* Sets who describes the stacks of recorded events; NULL: nobody. It is asked while a trace is recorded, on the thread that
 * allocates or frees and before any lock is taken: once for each request, and once for each free. A request without frames
 * is recorded without a stack, a free without frames with that of the request. Each different stack is kept once, until the
 * allocator is destroyed: 262,144 of them at most, and 256 MiB of names. Otherwise as cachalot_on_shortage. */
CACHALOT_API cachalot_status cachalot_on_stack(const cachalot_allocator *allocator, cachalot_stack_callback callback,
                                               void *userdata);

/* Adds the next frame, from the innermost outwards: texts, which are copied, of which NULL is "", and a line. The 1024
 * innermost frames count. For the callback of cachalot_on_stack only, with the stack that it got. */
CACHALOT_API void cachalot_stack_push(cachalot_stack *stack, const char *function_name, const char *file_name,
                                      int line);

/* ---- Looking inside ---- */

/* Records the latest `capacity` events of a device from here on; 0 ends it. What was recorded is dropped. Where more than
 * 16 streams and pools are busy at the same time it may be a few hundred fewer: an event is told only with all that came
 * after it. Recording takes 40 bytes an event, and a lock only once in 32 of them.
 * Errors: TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_trace_start(const cachalot_allocator *allocator, int device, size_t capacity);

/* Calls `visit` with every recorded event, oldest first.
 * Errors: STOPPED. */
CACHALOT_API cachalot_status cachalot_trace_for_each(const cachalot_allocator *allocator, int device,
                                                     cachalot_trace_visitor visit, void *userdata);

/* Writes every segment and block, the traces and the settings as JSON, with the keys of torch.cuda.memory._snapshot(),
 * in parts of up to 64 KiB. Heaps are looked at one after the other, so stop the program for an exact picture.
 * Errors: STOPPED. */
CACHALOT_API cachalot_status cachalot_snapshot(const cachalot_allocator *allocator, cachalot_writer write,
                                               void *userdata);

/* The same in a format. A stack that several events have is written once to a pickle, but each time to JSON.
 * Errors: INVALID_ARGUMENT, STOPPED. */
CACHALOT_API cachalot_status cachalot_snapshot_as(const cachalot_allocator *allocator, cachalot_format format,
                                                  cachalot_writer write, void *userdata);

/* Writes such a snapshot to a file, as JSON if its name ends in .json, else as a pickle. A regular
 * file is made or replaced in one step once the snapshot is complete, and keeps its permissions. A
 * symbolic link to it stays. A device or a FIFO is written and never replaced.
 * Errors: IO; a regular file is then as it was before. */
CACHALOT_API cachalot_status cachalot_snapshot_to_file(const cachalot_allocator *allocator, const char *path);

/* Checks every invariant of every heap, for tests: it visits every block. CACHALOT_ERROR_PANIC names one that does not
 * hold, and does not poison the allocator. */
CACHALOT_API cachalot_status cachalot_check(const cachalot_allocator *allocator);

#ifdef CACHALOT_EXPERIMENTAL
/* ---- Simulated devices ---- */

/* Lets a stream of a simulated device get as far as it has been queued. Otherwise it only does so when it is waited
 * for.
 * Errors: INVALID_STREAM, UNSUPPORTED on other devices. */
CACHALOT_API cachalot_status cachalot_simulate_progress(const cachalot_allocator *allocator, int device,
                                                        cachalot_stream stream);

/* Begins (not 0) or ends the capture of a graph on a stream of a simulated device.
 * Errors: as before. */
CACHALOT_API cachalot_status cachalot_simulate_capture(const cachalot_allocator *allocator, int device,
                                                       cachalot_stream stream, int on);
#endif

#ifdef __cplusplus
}
#endif

#endif
