/*
 * Pools of captured graphs lend the pages of their free blocks. The graphs copy their input through blocks that are free
 * between replays, while others write to the same pages. Runs on the emulated driver and on a GPU.
 *
 *   lend CONFIG
 */
#include "../misuse/misuse.h"

typedef unsigned long long address;

unsigned cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuDevicePrimaryCtxRelease_v2(int);
unsigned cuCtxSetCurrent(void *);
unsigned cuStreamCreate(cachalot_stream *, unsigned), cuStreamDestroy_v2(cachalot_stream);
unsigned cuStreamSynchronize(cachalot_stream);
unsigned cuStreamBeginCapture_v2(cachalot_stream, int), cuStreamEndCapture(cachalot_stream, void **);
unsigned cuGraphInstantiateWithFlags(void **, void *, unsigned long long), cuGraphLaunch(void *, cachalot_stream);
unsigned cuGraphDestroy(void *), cuGraphExecDestroy(void *);
unsigned cuMemsetD8Async(address, unsigned char, size_t, cachalot_stream);
unsigned cuMemcpyDtoDAsync_v2(address, address, size_t, cachalot_stream);
unsigned cuMemcpyDtoHAsync_v2(void *, address, size_t, cachalot_stream);
unsigned cuMemGetInfo_v2(size_t *, size_t *);

enum { NON_BLOCKING = 1, GRAPHS = 8, ROUNDS = 24, TAG = 5 };

#define MIB ((size_t)1 << 20)
#define DRIVER(call) NEEDED((int)(call))
#define PAGE (20 * MIB)
#define ROWS (24 * MIB)

/* A graph that copies its input to its output through two blocks that are free between replays. */
typedef struct graph {
  cachalot_pool pool;
  void *input, *output, *executable;
  void *scratch; /* the address of one of these blocks */
} graph;

static address number(const void *pointer) { return (address)(uintptr_t)pointer; }

static size_t used_memory(void) {
  size_t free = 0, total = 0;
  DRIVER(cuMemGetInfo_v2(&free, &total));
  return total - free;
}

static void *block(cachalot_allocator *allocator, size_t bytes, cachalot_stream stream) {
  void *made = NULL;
  NEEDED(cachalot_malloc(allocator, 0, bytes, stream, &made));
  return made;
}

static graph capture(cachalot_allocator *allocator, cachalot_stream stream, uint64_t tag) {
  graph made = {{0, 0}, NULL, NULL, NULL, NULL};
  void *captured = NULL, *between[2];
  made.input = block(allocator, ROWS, stream);
  NEEDED(cachalot_pool_create(allocator, 0, 0, &made.pool));
  if (tag != 0) {
    NEEDED(cachalot_pool_set_tag(allocator, 0, made.pool, tag));
  }
  NEEDED(cachalot_capture_begin(allocator, 0, made.pool, CACHALOT_ROUTE_STREAM, stream));
  DRIVER(cuStreamBeginCapture_v2(stream, 0));
  for (int at = 0; at < 2; ++at) {
    between[at] = block(allocator, ROWS, stream);
    DRIVER(cuMemcpyDtoDAsync_v2(number(between[at]), number(at == 0 ? made.input : between[0]), ROWS, stream));
  }
  made.output = block(allocator, ROWS, stream);
  DRIVER(cuMemcpyDtoDAsync_v2(number(made.output), number(between[1]), ROWS, stream));
  for (int at = 0; at < 2; ++at) {
    NEEDED(cachalot_free(allocator, between[at]));
  }
  made.scratch = between[0];
  DRIVER(cuStreamEndCapture(stream, &captured));
  NEEDED(cachalot_capture_end(allocator, 0, made.pool));
  DRIVER(cuGraphInstantiateWithFlags(&made.executable, captured, 0));
  DRIVER(cuGraphDestroy(captured));
  return made;
}

/* Replays a graph with new input, and returns how many bytes of the output are wrong. */
static size_t replay(cachalot_allocator *allocator, graph *of, unsigned char value, cachalot_stream stream) {
  static unsigned char copy[ROWS];
  size_t wrong = 0;
  NEEDED(cachalot_pool_reclaim(allocator, 0, of->pool, stream));
  DRIVER(cuMemsetD8Async(number(of->input), value, ROWS, stream));
  DRIVER(cuGraphLaunch(of->executable, stream));
  DRIVER(cuMemcpyDtoHAsync_v2(copy, number(of->output), ROWS, stream));
  DRIVER(cuStreamSynchronize(stream));
  for (size_t at = 0; at < ROWS; ++at) {
    wrong += copy[at] != value;
  }
  return wrong;
}

/* Work without a graph, in memory that others lend. */
static void work(cachalot_allocator *allocator, cachalot_stream stream) {
  void *made = block(allocator, 2 * ROWS, stream);
  DRIVER(cuMemsetD8Async(number(made), 0xee, 2 * ROWS, stream));
  NEEDED(cachalot_free(allocator, made));
}

static void end(cachalot_allocator *allocator, graph *of) {
  DRIVER(cuGraphExecDestroy(of->executable));
  NEEDED(cachalot_free(allocator, of->input));
  NEEDED(cachalot_free(allocator, of->output));
  NEEDED(cachalot_pool_release(allocator, 0, of->pool)); /* of the graph */
  NEEDED(cachalot_pool_release(allocator, 0, of->pool)); /* of the program */
}

/* One graph lends between its replays, with other work in between, and without. */
static void lend_one(cachalot_allocator *allocator, cachalot_stream *streams) {
  graph of = capture(allocator, streams[0], 0);
  const size_t held = used_memory();
  void *refused = NULL;
  char text[512];
  for (int round = 0; round < ROUNDS; ++round) {
    CHECK(replay(allocator, &of, (unsigned char)round, streams[round % 2]) == 0);
    DRIVER(cuGraphLaunch(of.executable, streams[round % 2]));
    NEEDED(cachalot_pool_lend(allocator, 0, of.pool));
    if (round % 3 != 0) {
      work(allocator, streams[2]);
      CHECK(used_memory() <= held + PAGE); /* the last lent page is not a whole one */
    }
  }
  NEEDED(cachalot_pool_begin(allocator, 0, of.pool, CACHALOT_ROUTE_ALL, NULL));
  CHECK(cachalot_malloc(allocator, 0, 512, streams[0], &refused) == CACHALOT_ERROR_PARKED);
  NEEDED(cachalot_pool_end(allocator, 0, of.pool));
  NEEDED(cachalot_pool_release(allocator, 0, of.pool));
  NEEDED(cachalot_explain_address(allocator, of.output, text, sizeof text, NULL));
  CHECK(strstr(text, "has lent") == NULL);
  NEEDED(cachalot_explain_address(allocator, of.scratch, text, sizeof text, NULL));
  CHECK(strstr(text, "its pool has lent") != NULL);
  NEEDED(cachalot_pool_reclaim(allocator, 0, of.pool, streams[0]));
  DRIVER(cuStreamSynchronize(streams[0]));
  end(allocator, &of);
}

/* Eight graphs, each with a pool of its own, with a tag or without, in little more memory than one needs. */
static void lend_all(cachalot_allocator *allocator, cachalot_stream *streams, uint64_t tag) {
  graph of[GRAPHS];
  for (int at = 0; at < GRAPHS; ++at) {
    of[at] = capture(allocator, streams[0], tag);
    CHECK(replay(allocator, &of[at], (unsigned char)at, streams[1]) == 0);
    NEEDED(cachalot_pool_lend(allocator, 0, of[at].pool));
    NEEDED(cachalot_empty_cache(allocator, 0)); /* a capture waits for nothing, and takes what is free */
  }
  const size_t held = used_memory();
  for (int round = 0; round < ROUNDS; ++round) {
    graph *next = &of[round * 3 % GRAPHS];
    CHECK(replay(allocator, next, (unsigned char)(round + 100), streams[1]) == 0);
    NEEDED(cachalot_pool_lend(allocator, 0, next->pool));
    work(allocator, streams[2]);
    CHECK(used_memory() <= held + 4 * ROWS);
  }
  if (tag != 0) {
    cachalot_park_report report = CACHALOT_PARK_REPORT_INIT;
    const cachalot_park_target target = {sizeof target, tag, NULL, CACHALOT_PARK_TAG, 0};
    NEEDED(cachalot_get_park_report(allocator, 0, &target, &report));
    CHECK(report.state == CACHALOT_LENT && report.parked_bytes > 0);
    CHECK(cachalot_park(allocator, 0, &target, NULL) == CACHALOT_ERROR_NOT_PARKABLE);
    NEEDED(cachalot_tag_reclaim(allocator, 0, tag, streams[1]));
    NEEDED(cachalot_get_park_report(allocator, 0, &target, &report));
    CHECK(report.state == CACHALOT_AWAKE && report.parked_bytes == 0);
    NEEDED(cachalot_tag_lend(allocator, 0, tag));
  }
  for (int at = 0; at < GRAPHS; ++at) {
    CHECK(replay(allocator, &of[at], (unsigned char)(at + 50), streams[1]) == 0);
    end(allocator, &of[at]);
  }
}

int main(int count, char **arguments) {
  void *context = NULL;
  cachalot_stream streams[3];
  cachalot_allocator *allocator = NULL;
  if (count != 2) {
    fprintf(stderr, "usage: lend CONFIG\n");
    return 2;
  }
  DRIVER(cuInit(0));
  DRIVER(cuDevicePrimaryCtxRetain(&context, 0));
  DRIVER(cuCtxSetCurrent(context));
  for (int stream = 0; stream < 3; ++stream) {
    DRIVER(cuStreamCreate(&streams[stream], NON_BLOCKING));
  }
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  options.config = arguments[1];
  NEEDED(cachalot_create(&options, &allocator));
  if (arguments[1][0] != '\0') {
    lend_one(allocator, streams);
    lend_all(allocator, streams, 0);
  } else {
    cachalot_pool pool;
    NEEDED(cachalot_pool_create(allocator, 0, 0, &pool));
    CHECK(cachalot_pool_lend(allocator, 0, pool) == CACHALOT_ERROR_NOT_PARKABLE);
    NEEDED(cachalot_pool_release(allocator, 0, pool));
  }
  lend_all(allocator, streams, TAG);
  NEEDED(cachalot_empty_cache(allocator, 0));
  NEEDED(cachalot_check_invariants(allocator));
  NEEDED(cachalot_destroy(allocator));
  for (int stream = 0; stream < 3; ++stream) {
    DRIVER(cuStreamDestroy_v2(streams[stream]));
  }
  DRIVER(cuCtxSetCurrent(NULL));
  DRIVER(cuDevicePrimaryCtxRelease_v2(0));
  if (failures == 0) {
    puts("lend: well");
  }
  return failures == 0 ? 0 : 1;
}
