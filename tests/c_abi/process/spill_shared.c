/*
 * A block on pages of the host that others use, too: a second device, a graph captured before the block moved, a forked
 * child, and another process, which gets a page only while it is the device's. Runs on the emulated driver and on two GPUs.
 *
 *   spill_shared CONFIG [later]   "later" opens the memory to the second device after the block has moved
 */
#include "../misuse/misuse.h"

#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long long address;

unsigned cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuDevicePrimaryCtxRelease_v2(int);
unsigned cuCtxSetCurrent(void *), cuCtxSynchronize(void), cuMemcpyDtoH_v2(void *, address, size_t);
unsigned cuMemcpyDtoD_v2(address, address, size_t), cuMemsetD8_v2(address, unsigned char, size_t);
unsigned cuMemcpyDtoDAsync_v2(address, address, size_t, cachalot_stream);
unsigned cuStreamCreate(cachalot_stream *, unsigned), cuStreamDestroy_v2(cachalot_stream);
unsigned cuStreamSynchronize(cachalot_stream);
unsigned cuStreamBeginCapture_v2(cachalot_stream, int), cuStreamEndCapture(cachalot_stream, void **);
unsigned cuGraphInstantiateWithFlags(void **, void *, unsigned long long), cuGraphLaunch(void *, cachalot_stream);
unsigned cuGraphDestroy(void *), cuGraphExecDestroy(void *);

#define DRIVER(call) NEEDED((int)(call))

enum { NON_BLOCKING = 1, BYTES = 40 << 20 };

static unsigned char found[BYTES];

static address number(const void *pointer) { return (address)(uintptr_t)pointer; }

/* Fills a block, and waits until it is filled. */
static void fill(const void *block, unsigned char value) {
  DRIVER(cuMemsetD8_v2(number(block), value, BYTES));
  DRIVER(cuCtxSynchronize());
}

/* Whether every byte of a block has a value. */
static int holds(const void *block, unsigned char value) {
  size_t at;
  DRIVER(cuMemcpyDtoH_v2(found, number(block), BYTES));
  for (at = 0; at < BYTES && found[at] == value; ++at) {
  }
  return at == BYTES;
}

static void *block_of(cachalot_allocator *allocator, int device, cachalot_stream stream) {
  void *block = NULL;
  NEEDED(cachalot_malloc(allocator, device, BYTES, stream, &block));
  return block;
}

static uint64_t advise(const cachalot_allocator *allocator, const void *block, cachalot_advice advice) {
  uint64_t moved = 0;
  NEEDED(cachalot_advise(allocator, block, advice, &moved));
  return moved;
}

/* Work of the second device reads and writes the block of the first, where it lies then. */
static void second_device(void **contexts, const void *block, const void *other, unsigned char value) {
  DRIVER(cuCtxSetCurrent(contexts[1]));
  DRIVER(cuMemcpyDtoD_v2(number(other), number(block), BYTES));
  CHECK(holds(other, value));
  fill(other, (unsigned char)(value + 1));
  DRIVER(cuMemcpyDtoD_v2(number(block), number(other), BYTES));
  DRIVER(cuCtxSynchronize());
  DRIVER(cuCtxSetCurrent(contexts[0]));
  CHECK(holds(block, (unsigned char)(value + 1)));
}

/* A graph that copies one block to another runs on, wherever the block lies. */
static void captured(cachalot_allocator *allocator) {
  cachalot_stream stream = NULL;
  void *graph = NULL, *executable = NULL, *from, *to;
  DRIVER(cuStreamCreate(&stream, NON_BLOCKING));
  from = block_of(allocator, 0, stream);
  to = block_of(allocator, 0, stream);
  DRIVER(cuStreamBeginCapture_v2(stream, 0));
  DRIVER(cuMemcpyDtoDAsync_v2(number(to), number(from), BYTES, stream));
  DRIVER(cuStreamEndCapture(stream, &graph));
  DRIVER(cuGraphInstantiateWithFlags(&executable, graph, 0));
  for (int round = 0; round < 3; ++round) {
    const cachalot_advice where = round == 1 ? CACHALOT_COLD : CACHALOT_HOT;
    CHECK(advise(allocator, to, where) == (round == 0 ? 0 : BYTES));
    advise(allocator, from, round == 2 ? CACHALOT_COLD : CACHALOT_HOT);
    fill(from, (unsigned char)(50 + round));
    DRIVER(cuGraphLaunch(executable, stream));
    DRIVER(cuStreamSynchronize(stream));
    CHECK(holds(to, (unsigned char)(50 + round)));
  }
  DRIVER(cuGraphExecDestroy(executable));
  DRIVER(cuGraphDestroy(graph));
  NEEDED(cachalot_free(allocator, from));
  NEEDED(cachalot_free(allocator, to));
  DRIVER(cuStreamDestroy_v2(stream));
}

/* A child can neither free the block nor move it, and the parent keeps it. */
static void forked(cachalot_allocator *allocator, void *block, unsigned char value) {
  int status = -1;
  const pid_t id = fork();
  if (id == 0) {
    failures = 0;
    alarm(30);
    CHECK(cachalot_free(allocator, block) == CACHALOT_ERROR_FORKED);
    CHECK(cachalot_advise(allocator, block, CACHALOT_HOT, NULL) == CACHALOT_ERROR_FORKED);
    _exit(failures != 0);
  }
  CHECK(id > 0 && waitpid(id, &status, 0) == id && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(holds(block, value));
}

/* Another process gets no page of the host. Where the block is to be shared, it comes back first. */
static void exported(const cachalot_allocator *allocator, const void *block, unsigned char value) {
  int fd = -1;
  NEEDED(cachalot_pin(allocator, block));
  CHECK(cachalot_export_fd(allocator, block, &fd) == CACHALOT_ERROR_UNSUPPORTED && fd == -1);
  CHECK(strstr(cachalot_last_error(), "spill") != NULL);
  CHECK(advise(allocator, block, CACHALOT_HOT) == 0);
  NEEDED(cachalot_unpin(allocator, block));
  CHECK(advise(allocator, block, CACHALOT_HOT) == BYTES);
  NEEDED(cachalot_pin(allocator, block));
  NEEDED(cachalot_export_fd(allocator, block, &fd));
  CHECK(fd >= 0 && close(fd) == 0);
  CHECK(advise(allocator, block, CACHALOT_COLD) == 0);
  NEEDED(cachalot_unpin(allocator, block));
  CHECK(holds(block, value));
}

int main(int argc, char **argv) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  void *contexts[2] = {NULL, NULL}, *block, *other;
  const int later = argc > 2 && strcmp(argv[2], "later") == 0;
  options.config = argv[1];
  options.flags = later ? 0 : CACHALOT_PEER_ACCESS;
  NEEDED(cachalot_create(&options, &allocator));
  DRIVER(cuInit(0));
  for (int device = 1; device >= 0; --device) {
    DRIVER(cuDevicePrimaryCtxRetain(&contexts[device], device));
    DRIVER(cuCtxSetCurrent(contexts[device]));
  }
  block = block_of(allocator, 0, NULL);
  other = block_of(allocator, 1, NULL);
  fill(block, 10);
  CHECK(advise(allocator, block, CACHALOT_COLD) == BYTES);
  CHECK(holds(block, 10));
  if (later) {
    NEEDED(cachalot_enable_peer_access(allocator, 0, 1));
    NEEDED(cachalot_enable_peer_access(allocator, 1, 0));
  }
  second_device(contexts, block, other, 10);
  CHECK(advise(allocator, block, CACHALOT_HOT) == BYTES);
  second_device(contexts, block, other, 11);
  CHECK(advise(allocator, block, CACHALOT_COLD) == BYTES);
  second_device(contexts, block, other, 12);
  forked(allocator, block, 13);
  captured(allocator);
  exported(allocator, block, 13);
  NEEDED(cachalot_check_invariants(allocator));
  NEEDED(cachalot_free(allocator, block));
  NEEDED(cachalot_free(allocator, other));
  NEEDED(cachalot_empty_cache(allocator, 0));
  NEEDED(cachalot_destroy(allocator));
  DRIVER(cuDevicePrimaryCtxRelease_v2(0));
  DRIVER(cuDevicePrimaryCtxRelease_v2(1));
  return failures != 0;
}
