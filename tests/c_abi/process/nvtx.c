/*
 * What a memory checker is told through NVTX, compared with the blocks after every operation of a random program.
 *
 * nvtx SETTINGS SEED, with nvtx_tool.c as the checker that NVTX_INJECTION64_PATH names; without the variable, or with
 * nvtx:off, nothing is told, and under policy:direct each block is the driver's.
 */
#include "streams.h"

enum { blocks = 64, operations = 3000 };

typedef struct held {
  void *at;
  size_t bytes;
} held;

static size_t (*tool_heaps)(void);
static size_t (*tool_regions)(void);
static size_t (*tool_region)(uintptr_t);
static unsigned (*tool_mistakes)(void);
static size_t (*tool_named)(const char *);

static uint64_t seed;

/* A random number below `end`. */
static size_t below(size_t end) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (size_t)((seed >> 33) % end);
}

/* Each block is requested at the same place. */
static void describe(void *userdata, cachalot_stack *stack, cachalot_action action) {
  (void)userdata, (void)action;
  cachalot_stack_push(stack, "planted", "/home/user/program.py", 81);
}

int main(int argc, char **argv) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  cachalot_stream streams[2] = {NULL, NULL};
  static held live[blocks];
  size_t count = 0, step, at;
  const char *path = getenv("NVTX_INJECTION64_PATH");
  const int refuses = getenv("NVTX_TOOL_REFUSES") != NULL; /* the tool knows no block of every second segment */
  void *library;
  int listens;
  options.config = argc > 1 ? argv[1] : "";
  seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
  NEEDED(cachalot_create(&options, &allocator));
  library = path == NULL ? NULL : dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  listens = library != NULL && strstr(options.config, "nvtx:off") == NULL && strstr(options.config, "policy:direct") == NULL;
  if (library != NULL) {
    *(void **)&tool_heaps = dlsym(library, "nvtx_tool_heaps");
    *(void **)&tool_regions = dlsym(library, "nvtx_tool_regions");
    *(void **)&tool_region = dlsym(library, "nvtx_tool_region");
    *(void **)&tool_mistakes = dlsym(library, "nvtx_tool_mistakes");
    *(void **)&tool_named = dlsym(library, "nvtx_tool_named");
  }
  NEEDED(cachalot_on_stack(allocator, describe, NULL));
  enter_driver(0);
  for (at = 0; at < 2; ++at) {
    CHECK(cuda.stream_create(&streams[at], 1) == 0);
  }
  /* The thread has no context, as a thread before its first call of the driver. */
  CHECK(cuda.set_current(NULL) == 0);
  for (step = 0; step < operations && failures == 0; ++step) {
    const size_t what = below(20);
    if (what < 9 && count < blocks) {
      const size_t bytes = 1 + below(below(4) == 0 ? 4u << 20 : 20000);
      NEEDED(cachalot_malloc(allocator, 0, bytes, streams[below(2)], &live[count].at));
      live[count++].bytes = bytes;
    } else if (what < 16 && count > 0) {
      at = below(count);
      NEEDED(cachalot_free(allocator, live[at].at));
      live[at] = live[--count];
    } else if (what < 18 && count > 0) {
      NEEDED(cachalot_record_stream(allocator, live[below(count)].at, streams[below(2)]));
    } else if (what == 18) {
      NEEDED(cachalot_process_events(allocator, 0));
    } else if (below(20) == 0) {
      NEEDED(cachalot_empty_cache(allocator, 0));
    }
    if (!listens) {
      CHECK(library == NULL || (tool_heaps() == 0 && tool_regions() == 0));
      continue;
    }
    /* A freed block may be a region still, until the work known at its free is complete. */
    for (at = 0; at < count; ++at) {
      const size_t bytes = tool_region((uintptr_t)live[at].at);
      CHECK(bytes == live[at].bytes || (refuses && bytes == 0));
    }
    CHECK(tool_mistakes() == 0 && (refuses || tool_regions() >= count));
  }
  enter_driver(0);
  CHECK(!listens || tool_named("program.py:81 planted") > 0);
  /* Frees that share an event record it at the first of two questions. */
  for (at = 0; at < 4; ++at) {
    CHECK(cuda.stream_synchronize(streams[at % 2]) == 0);
    if (at % 2 == 1) {
      NEEDED(cachalot_process_events(allocator, 0));
    }
  }
  CHECK(!listens || refuses || tool_regions() == count);
  while (count > 0) {
    NEEDED(cachalot_free(allocator, live[--count].at));
  }
  NEEDED(cachalot_empty_cache(allocator, 0));
  CHECK(!listens || (tool_regions() == 0 && tool_heaps() == 0 && tool_mistakes() == 0));
  for (at = 0; at < 2; ++at) {
    NEEDED(cachalot_stream_destroyed(allocator, 0, streams[at]));
    CHECK(cuda.stream_destroy(streams[at]) == 0);
  }
  NEEDED(cachalot_destroy(allocator));
  printf("nvtx: %s\n", listens ? "told" : "silent");
  return failures != 0;
}
