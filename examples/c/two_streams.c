/*
 * A block that two streams use: one fills it, the other checks it, slowly. The block is freed before the check is done,
 * and must not be handed out again until then.
 */
#include "host.h"

enum { BYTES = 4 << 20 };

/* The findings of a check. */
static cachalot_findings found(void *findings) {
  cachalot_findings host;
  CUDA(cuMemcpyDtoH(&host, address(findings), sizeof host));
  return host;
}

int main(void) {
  const cachalot_findings nothing = {0, UINT64_MAX};
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  cachalot_kernel_arguments arguments;
  cachalot_findings result;
  cachalot_status freed;
  void *block, *next, *findings;
  CUmodule module;
  CUstream producer, consumer;
  CUevent filled;
  uint64_t round;
  int reused = 0;

  enter_device(0);
  module = load_kernels();
  producer = new_stream();
  consumer = new_stream();
  CUDA(cuEventCreate(&filled, CU_EVENT_DISABLE_TIMING));
  CACHALOT(cachalot_create(&options, &allocator));
  CACHALOT(cachalot_malloc(allocator, 0, sizeof nothing, consumer, &findings));
  CUDA(cuMemcpyHtoD(address(findings), &nothing, sizeof nothing));

  for (round = 0; round < 20; ++round) {
    CACHALOT(cachalot_malloc(allocator, 0, BYTES, producer, &block));
    cachalot_kernel_fill(&arguments, address(block), BYTES, round, 1);
    CUDA(cachalot_kernel_launch(kernel(module, CACHALOT_KERNEL_FILL), producer, &arguments));
    CUDA(cuEventRecord(filled, producer));

    /* The consumer waits for the contents, takes its time, and checks them. */
    CUDA(cuStreamWaitEvent(consumer, filled, 0));
    cachalot_kernel_hold(&arguments, 2000);
    CUDA(cachalot_kernel_launch(kernel(module, CACHALOT_KERNEL_HOLD), consumer, &arguments));
    cachalot_kernel_verify(&arguments, address(block), BYTES, round, 1, address(findings));
    CUDA(cachalot_kernel_launch(kernel(module, CACHALOT_KERNEL_VERIFY), consumer, &arguments));

    /* Everything that uses the block is queued: it can be freed, once the allocator knows of the other stream. */
    CACHALOT(cachalot_record_stream(allocator, block, consumer));
    CACHALOT(cachalot_free(allocator, block));
    freed = cachalot_free(allocator, block);
    EXPECT(freed == CACHALOT_ERROR_INVALID_POINTER);

    /* The producer goes on at once, and overwrites what it is given. */
    CACHALOT(cachalot_malloc(allocator, 0, BYTES, producer, &next));
    reused += next == block;
    cachalot_kernel_fill(&arguments, address(next), BYTES, round, 2);
    CUDA(cachalot_kernel_launch(kernel(module, CACHALOT_KERNEL_FILL), producer, &arguments));
    CACHALOT(cachalot_free(allocator, next));
    if (round % 4 == 3) {
      CUDA(cuStreamSynchronize(consumer));
      CACHALOT(cachalot_process_events(allocator, 0));
    }
  }

  CUDA(cuStreamSynchronize(consumer));
  result = found(findings);
  printf("two_streams: %llu bytes wrong, %d of 20 blocks reused at once\n", (unsigned long long)result.wrong_bytes,
         reused);
  EXPECT(result.wrong_bytes == 0 && result.lowest_wrong == UINT64_MAX);

  CACHALOT(cachalot_free(allocator, findings));
  end_stream(allocator, 0, producer);
  end_stream(allocator, 0, consumer);
  CACHALOT(cachalot_check_invariants(allocator));
  CACHALOT(cachalot_destroy(allocator));
  CUDA(cuEventDestroy(filled));
  CUDA(cuModuleUnload(module));
  leave_device(0);
  return 0;
}
