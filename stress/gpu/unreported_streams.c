/* Streams that end without a report, under every policy, on device and host memory: no call may touch a handle that it does
 * not name, because a real driver ends the process at any use of the handle of a destroyed stream.
 *
 *   cc -std=c11 -O2 -Iinclude -o unreported_streams stress/gpu/unreported_streams.c libcachalot.a -lpthread -ldl -lm
 *   unreported_streams 100000
 *   unreported_streams 100000 8      only the policy with this number, from 0 on
 *
 * Prints a line for each policy and kind of memory: megabytes held after a tenth of the streams, and at the end. A crash ends the
 * program, so a line says that there was none. The driver is CACHALOT_LIBCUDA, or libcuda.so.1. */
#define CACHALOT_EXPERIMENTAL
#include <cachalot.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define MB (1ull << 20)
typedef int (*driver_function)();

static void *library;

/* Returns a function of the driver. */
static driver_function driver(const char *name) {
  driver_function found;
  *(void **)&found = dlsym(library, name);
  if (!found) {
    fprintf(stderr, "the driver has no %s\n", name);
    exit(1);
  }
  return found;
}

static void check(int status, const char *what) {
  if (status) {
    fprintf(stderr, "%s: %d %s\n", what, status, cachalot_last_error());
    exit(1);
  }
}

static cachalot_stream make_stream(void) {
  void *stream = NULL;
  check(driver("cuStreamCreate")(&stream, 1), "cuStreamCreate");
  return stream;
}

static void end_stream(cachalot_stream stream) { check(driver("cuStreamDestroy_v2")(stream), "cuStreamDestroy"); }

static long held(cachalot_allocator *allocator) {
  int64_t bytes = 0;
  check(cachalot_find_statistic(allocator, 0, "reserved_bytes.all.current", &bytes), "cachalot_find_statistic");
  return (long)(bytes / (int64_t)MB);
}

/* The life of a stream, and of another that uses the stream's blocks. Two blocks are freed after both have ended. */
static void live(cachalot_allocator *allocator, long turn, unsigned flags) {
  const int is_host = (flags & CACHALOT_HOST) != 0;
  cachalot_stream own = make_stream(), other = make_stream(), named = is_host ? NULL : own;
  void *block[4];
  if (flags & CACHALOT_STREAMS_REPORTED) {
    check(cachalot_stream_unreported(allocator, 0, own), "cachalot_stream_unreported");
    check(cachalot_stream_unreported(allocator, 0, other), "cachalot_stream_unreported");
  }
  for (int i = 0; i < 4; i++) {
    size_t bytes = i % 2 ? 3 * MB + (size_t)(turn % 5) * MB : 1000 + (size_t)(turn % 7) * 3000;
    check(cachalot_malloc(allocator, 0, bytes, named, &block[i]), "cachalot_malloc");
    if (!is_host) {
      /* Work of the stream. On the emulated driver each page that is touched costs time. */
      const size_t written = bytes < MB ? bytes : MB;
      check(driver("cuMemsetD8Async")((unsigned long long)block[i], 1, written, own), "cuMemsetD8Async");
    }
  }
  if (is_host) {
    check(cachalot_record_stream(allocator, block[0], own), "cachalot_record_stream");
  }
  check(cachalot_record_stream(allocator, block[turn % 4], other), "cachalot_record_stream");
  check(cachalot_record_use(allocator, block[(turn + 1) % 4], other), "cachalot_record_use");
  check(cachalot_free(allocator, block[0]), "cachalot_free");
  check(cachalot_free(allocator, block[1]), "cachalot_free");
  if (turn % 500 == 499 && !is_host) {
    cachalot_park_target target = {sizeof target, 0, own, CACHALOT_PARK_STREAM, 0};
    cachalot_park_options options = CACHALOT_PARK_OPTIONS_INIT;
    options.order = turn % 1000 == 999 ? CACHALOT_PARK_AFTER_STREAMS : CACHALOT_PARK_AFTER_DEVICE;
    if (cachalot_park(allocator, 0, &target, &options) == CACHALOT_OK) {
      check(cachalot_wake(allocator, 0, &target), "cachalot_wake");
    }
  }
  /* An unreported stream should have finished its work. */
  check(driver("cuStreamSynchronize")(own), "cuStreamSynchronize");
  end_stream(own);
  end_stream(other);
  check(cachalot_free(allocator, block[2]), "cachalot_free");
  check(cachalot_free(allocator, block[3]), "cachalot_free");
}

/* Runs streams under a policy. */
static void run(const char *config, unsigned flags, long streams) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  int device = 0, more = 0;
  long early = 0;
  options.config = config;
  options.flags = flags;
  options.devices = &device;
  options.device_count = 1;
  check(cachalot_create(&options, &allocator), config);
  for (long turn = 0; turn < streams; turn++) {
    live(allocator, turn, flags);
    if (turn % 16 == 15) {
      check(cachalot_process_events(allocator, 0), "cachalot_process_events");
    }
    if (turn % 64 == 63) {
      void *block;
      check(cachalot_malloc(allocator, 0, 40 * MB, NULL, &block), "cachalot_malloc");
      check(cachalot_free(allocator, block), "cachalot_free");
      check(cachalot_maintain(allocator, 0, 1000, &more), "cachalot_maintain");
    }
    if (turn % 256 == 255) {
      check(cachalot_trim(allocator, 0, 64 * MB), "cachalot_trim");
    }
    if (turn % 1024 == 1023) {
      check(cachalot_empty_cache(allocator, 0), "cachalot_empty_cache");
    }
    if (turn == streams / 10) {
      early = held(allocator);
    }
  }
  long late = held(allocator);
  check(cachalot_empty_cache(allocator, 0), "cachalot_empty_cache");
  long left = held(allocator);
  check(cachalot_destroy(allocator), "cachalot_destroy");
  printf("\"%s\",%s,%ld,0,%ld,%ld,%ld\n", config,
         flags & CACHALOT_HOST ? "host" : flags & CACHALOT_ASK_STREAM_ID ? "device+asked" : flags ? "device+told" : "device",
         2 * streams, early, late, left);
  fflush(stdout);
}

int main(int count, char **arguments) {
  /* The first ones are tried with host memory, too. */
  static const char *const configs[] = {
      "",
      "decisions:improved",
      "policy:bfc",
      "policy:slab",
      "policy:direct",
      "expandable_segments:True",
      "policy:bfc,expandable_segments:True",
      "policy:buddy",
      "policy:size_class",
      "policy:stitched",
      "policy:stitched,completed_pages_only:True",
      "policy:planned",
      "pattern:90",
      "zero:on_free,expandable_segments:True",
      "canary:True,policy:bfc",
      "guard:sampled:5",
      "reclaim:auto",
  };
  const long policies = sizeof configs / sizeof *configs, of_host = 5;
  long streams = count > 1 ? atol(arguments[1]) / 2 : 50000, only = count > 2 ? atol(arguments[2]) : -1;
  const char *name = getenv("CACHALOT_LIBCUDA");
  void *context;
  library = dlopen(name ? name : "libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!library || streams < 1 || only >= policies) {
    fprintf(stderr, "usage: unreported_streams [STREAMS [POLICY]], with the driver %s\n", name ? name : "libcuda.so.1");
    return 2;
  }
  check(driver("cuInit")(0), "cuInit");
  check(driver("cuDevicePrimaryCtxRetain")(&context, 0), "cuDevicePrimaryCtxRetain");
  check(driver("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
  /* Asked: the driver is asked for the ids of streams. Told: other ends are reported, and the allocator is told of these streams. */
  puts("policy,memory,streams,crashes,held_mb_at_10_percent,held_mb_at_end,held_mb_after_empty_cache");
  for (long i = only < 0 ? 0 : only; i < (only < 0 ? policies : only + 1); i++) {
    run(configs[i], 0, streams);
    run(configs[i], CACHALOT_ASK_STREAM_ID, streams);
    run(configs[i], CACHALOT_STREAMS_REPORTED, streams);
    if (i < of_host) {
      run(configs[i], CACHALOT_HOST, streams);
    }
  }
  check(driver("cuDevicePrimaryCtxRelease_v2")(0), "cuDevicePrimaryCtxRelease");
  return 0;
}
