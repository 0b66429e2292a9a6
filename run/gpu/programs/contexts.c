// Two contexts of one device, streams that do not wait for the null stream, host functions, and contexts that come and go:
// the frees of one context while the work of another runs. Links the driver.
#include "check.h"

#include <cuda.h>
#include <string.h>

static const char *const SOURCE =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin(.param .u64 nanoseconds, .param .u64 words, .param .u32 count, .param .u32 value) {\n"
    ".reg .u64 %rd<10>; .reg .u32 %r<6>; .reg .pred %p<3>;\n"
    "ld.param.u64 %rd1, [nanoseconds]; ld.param.u64 %rd2, [words]; ld.param.u32 %r1, [count]; ld.param.u32 %r2, [value];\n"
    "mov.u64 %rd3, %globaltimer; add.u64 %rd4, %rd3, %rd1;\n"
    "wait: mov.u64 %rd5, %globaltimer; setp.lt.u64 %p1, %rd5, %rd4; @%p1 bra wait;\n"
    "mov.u32 %r3, 0;\n"
    "next: setp.ge.u32 %p2, %r3, %r1; @%p2 bra done;\n"
    "st.global.u32 [%rd2], %r2; add.u64 %rd2, %rd2, 4; add.u32 %r3, %r3, 1; bra next;\n"
    "done: ret;\n}\n";

enum { WORDS = 4096, ROUNDS = 200 };

typedef struct {
  CUcontext context;
  CUfunction spin;
  CUstream streams[2];
} Side;

static Side open_side(CUcontext context) {
  Side side = {context, NULL, {NULL, NULL}};
  CUmodule module;
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuModuleLoadData(&module, SOURCE));
  CHECK(cuModuleGetFunction(&side.spin, module, "spin"));
  CHECK(cuStreamCreate(&side.streams[0], CU_STREAM_NON_BLOCKING));
  CHECK(cuStreamCreate(&side.streams[1], CU_STREAM_DEFAULT));
  return side;
}

static void spin(const Side *side, int stream, CUdeviceptr words, unsigned value, unsigned long long nanoseconds) {
  unsigned count = WORDS;
  void *arguments[] = {&nanoseconds, &words, &count, &value};
  CHECK(cuLaunchKernel(side->spin, 1, 1, 1, 1, 1, 1, 0, side->streams[stream], arguments, NULL));
}

int main(void) {
  CUdevice device;
  CUcontext primary, own;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&primary, device));
#if CUDA_VERSION >= 13000
  CHECK(cuCtxCreate(&own, NULL, 0, device));
#else
  CHECK(cuCtxCreate(&own, 0, device));
#endif
  Side sides[2] = {open_side(primary), open_side(own)};
  uint64_t state = 11, sum = 0;
  for (int round = 0; round < ROUNDS; round++) {
    Side *side = &sides[next_number(&state) % 2];
    CUdeviceptr first, second;
    static unsigned words[WORDS];
    CHECK(cuCtxSetCurrent(side->context));
    CHECK(cuMemAlloc(&first, sizeof words));
    // The kernel writes late: a free that gave the memory away at once would be seen in the second block.
    spin(side, (int)(next_number(&state) % 2), first, 0xdeadbeef, 200000);
    CHECK(cuMemFree(first));
    CHECK(cuMemAlloc(&second, sizeof words));
    for (int at = 0; at < WORDS; at++) words[at] = (unsigned)(round + at);
    CHECK(cuMemcpyHtoD(second, words, sizeof words));
    memset(words, 0, sizeof words);
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH(words, second, sizeof words));
    for (int at = 0; at < WORDS; at++) EXPECT(words[at] == (unsigned)(round + at));
    sum = sum * 31 + words[round];
    CHECK(cuMemFree(second));
  }
  // Memory of a context ends with it, and another context goes on.
  CUdeviceptr lost, kept;
  CHECK(cuCtxSetCurrent(own));
  CHECK(cuMemAlloc(&lost, 1 << 20));
  CHECK(cuCtxDestroy(own));
  CHECK(cuCtxSetCurrent(primary));
  CHECK(cuMemAlloc(&kept, 1 << 20));
  CHECK(cuMemsetD8(kept, 5, 1 << 20));
  CHECK(cuMemFree(kept));
  CHECK(cuDevicePrimaryCtxReset(device));
  CHECK(cuDevicePrimaryCtxRetain(&primary, device));
  CHECK(cuCtxSetCurrent(primary));
  CHECK(cuMemAlloc(&kept, 3 << 20));
  CHECK(cuMemsetD8(kept, 9, 3 << 20));
  CHECK(cuMemcpyDtoH(&sum, kept, 1));
  CHECK(cuMemFree(kept));
  printf("contexts %llx\n", (unsigned long long)sum);
  return 0;
}
