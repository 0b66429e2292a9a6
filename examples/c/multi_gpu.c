/*
 * One allocator over two GPUs: blocks of each, a kernel of one that reads the other's memory where that is possible, a
 * limit for one of them. Says so and ends well where there are fewer GPUs.
 */
#include "host.h"

enum { BYTES = 8 << 20 };

/* One GPU, as the program uses it. */
typedef struct gpu {
  CUcontext context;
  CUmodule module;
  CUstream stream;
  void *block;
  void *findings;
} gpu;

static gpu open_gpu(const cachalot_allocator *allocator, int device) {
  const cachalot_findings nothing = {0, UINT64_MAX};
  gpu it;
  it.context = enter_device(device);
  it.module = load_kernels();
  it.stream = new_stream();
  CACHALOT(cachalot_malloc(allocator, device, BYTES, it.stream, &it.block));
  CACHALOT(cachalot_malloc(allocator, device, sizeof nothing, it.stream, &it.findings));
  CUDA(cuMemcpyHtoD(address(it.findings), &nothing, sizeof nothing));
  return it;
}

static void launch(const gpu *it, const char *name, cachalot_kernel_arguments *arguments) {
  CUDA(cuCtxSetCurrent(it->context));
  CUDA(cachalot_kernel_launch(kernel(it->module, name), it->stream, arguments));
}

static void expect_right(const gpu *it) {
  cachalot_findings host;
  CUDA(cuCtxSetCurrent(it->context));
  CUDA(cuStreamSynchronize(it->stream));
  CUDA(cuMemcpyDtoH(&host, address(it->findings), sizeof host));
  EXPECT(host.wrong_bytes == 0);
}

/* The second GPU reads the first one's block. False if it cannot. */
static int read_across(const cachalot_allocator *allocator, const gpu *gpus) {
  cachalot_kernel_arguments arguments;
  const cachalot_status opened = cachalot_enable_peer_access(allocator, 0, 1);
  if (opened == CACHALOT_ERROR_UNSUPPORTED) {
    return 0;
  }
  CACHALOT(opened);
  CUDA(cuCtxSetCurrent(gpus[0].context));
  CUDA(cuStreamSynchronize(gpus[0].stream));
  cachalot_kernel_copy(&arguments, address(gpus[1].block), address(gpus[0].block), BYTES);
  launch(&gpus[1], CACHALOT_KERNEL_COPY, &arguments);
  /* The block is the first GPU's, used on a stream of the second. */
  CACHALOT(cachalot_record_stream(allocator, gpus[0].block, gpus[1].stream));
  cachalot_kernel_verify(&arguments, address(gpus[1].block), BYTES, 0, 1, address(gpus[1].findings));
  launch(&gpus[1], CACHALOT_KERNEL_VERIFY, &arguments);
  return 1;
}

int main(void) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  cachalot_kernel_arguments arguments;
  cachalot_status refused;
  gpu gpus[2];
  void *more = NULL;
  int devices = 0, device, across;

  CACHALOT(cachalot_create(&options, &allocator));
  CACHALOT(cachalot_get_device_count(allocator, &devices));
  if (devices < 2) {
    printf("multi_gpu: skipped, there is one GPU\n");
    CACHALOT(cachalot_destroy(allocator));
    return 0;
  }
  for (device = 0; device < 2; ++device) {
    cachalot_block block = CACHALOT_BLOCK_INIT;
    gpus[device] = open_gpu(allocator, device);
    CACHALOT(cachalot_get_block(allocator, gpus[device].block, &block));
    EXPECT(block.device == device && block.base == gpus[device].block);
    cachalot_kernel_fill(&arguments, address(gpus[device].block), BYTES, (uint64_t)device, 1);
    launch(&gpus[device], CACHALOT_KERNEL_FILL, &arguments);
    cachalot_kernel_verify(&arguments, address(gpus[device].block), BYTES, (uint64_t)device, 1,
                           address(gpus[device].findings));
    launch(&gpus[device], CACHALOT_KERNEL_VERIFY, &arguments);
  }
  across = read_across(allocator, gpus);

  /* A limit of one device is not the other's. */
  CACHALOT(cachalot_set_limit(allocator, 1, 32 << 20));
  refused = cachalot_malloc(allocator, 1, 64 << 20, gpus[1].stream, &more);
  EXPECT(refused == CACHALOT_ERROR_OUT_OF_MEMORY && more == NULL);
  CACHALOT(cachalot_malloc(allocator, 0, 64 << 20, gpus[0].stream, &more));
  CACHALOT(cachalot_free(allocator, more));

  for (device = 0; device < 2; ++device) {
    expect_right(&gpus[device]);
  }
  for (device = 0; device < 2; ++device) {
    CUDA(cuCtxSetCurrent(gpus[device].context));
    CACHALOT(cachalot_free(allocator, gpus[device].block));
    CACHALOT(cachalot_free(allocator, gpus[device].findings));
    end_stream(allocator, device, gpus[device].stream);
    CUDA(cuModuleUnload(gpus[device].module));
  }
  printf("multi_gpu: %d devices, blocks right; %s\n", devices,
         across ? "the second read the first one's memory" : "they cannot reach each other");
  CACHALOT(cachalot_destroy(allocator));
  leave_device(0);
  leave_device(1);
  return 0;
}
