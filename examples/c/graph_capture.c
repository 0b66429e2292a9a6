/*
 * Captures a graph with memory of a private pool, launches it between other allocations, and releases the pool.
 */
#include "host.h"

enum { BYTES = 1 << 20, LAUNCHES = 5, OTHERS = 8 };

/* Captures: a block is filled, copied to a second one, and freed; the second one is the graph's result. */
static CUgraphExec capture(const cachalot_allocator *allocator, CUmodule module, CUstream stream, cachalot_pool pool,
                           void **result, void **scratch) {
  cachalot_kernel_arguments arguments;
  CUgraph graph;
  CUgraphExec executable;
  /* Requests on this stream come from the pool while it captures. */
  CACHALOT(cachalot_capture_begin(allocator, 0, pool, CACHALOT_ROUTE_STREAM, stream));
  CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CACHALOT(cachalot_malloc(allocator, 0, BYTES, stream, scratch));
  cachalot_kernel_fill(&arguments, address(*scratch), BYTES, 7, 3);
  CUDA(cachalot_kernel_launch(kernel(module, CACHALOT_KERNEL_FILL), stream, &arguments));
  CACHALOT(cachalot_malloc(allocator, 0, BYTES, stream, result));
  cachalot_kernel_copy(&arguments, address(*result), address(*scratch), BYTES);
  CUDA(cachalot_kernel_launch(kernel(module, CACHALOT_KERNEL_COPY), stream, &arguments));
  CACHALOT(cachalot_free(allocator, *scratch));
  CUDA(cuStreamEndCapture(stream, &graph));
  CACHALOT(cachalot_capture_end(allocator, 0, pool));
  CUDA(cuGraphInstantiateWithFlags(&executable, graph, 0));
  CUDA(cuGraphDestroy(graph));
  return executable;
}

int main(void) {
  const cachalot_findings nothing = {0, UINT64_MAX};
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  cachalot_kernel_arguments arguments;
  cachalot_findings host;
  cachalot_pool pool;
  cachalot_block block = CACHALOT_BLOCK_INIT;
  void *result, *scratch, *findings, *others[OTHERS];
  uint32_t users = 0;
  int64_t reserved = -1;
  CUmodule module;
  CUstream stream;
  CUgraphExec executable;
  uint64_t launch;
  int index;

  enter_device(0);
  module = load_kernels();
  stream = new_stream();
  CACHALOT(cachalot_create(&options, &allocator));
  CACHALOT(cachalot_malloc(allocator, 0, sizeof nothing, stream, &findings));
  CUDA(cuMemcpyHtoD(address(findings), &nothing, sizeof nothing));
  CACHALOT(cachalot_pool_create(allocator, 0, 0, &pool));
  executable = capture(allocator, module, stream, pool, &result, &scratch);

  for (launch = 0; launch < LAUNCHES; ++launch) {
    /* Other work takes memory and overwrites it. The graph's own, scratch included, is not among it. */
    for (index = 0; index < OTHERS; ++index) {
      CACHALOT(cachalot_malloc(allocator, 0, BYTES, stream, &others[index]));
      EXPECT(others[index] != result && others[index] != scratch);
      cachalot_kernel_fill(&arguments, address(others[index]), BYTES, (uint64_t)index, launch);
      CUDA(cachalot_kernel_launch(kernel(module, CACHALOT_KERNEL_FILL), stream, &arguments));
    }
    CUDA(cuGraphLaunch(executable, stream));
    for (index = 0; index < OTHERS; ++index) {
      cachalot_kernel_verify(&arguments, address(others[index]), BYTES, (uint64_t)index, launch, address(findings));
      CUDA(cachalot_kernel_launch(kernel(module, CACHALOT_KERNEL_VERIFY), stream, &arguments));
      CACHALOT(cachalot_free(allocator, others[index]));
    }
    cachalot_kernel_verify(&arguments, address(result), BYTES, 7, 3, address(findings));
    CUDA(cachalot_kernel_launch(kernel(module, CACHALOT_KERNEL_VERIFY), stream, &arguments));
    /* Not even this takes memory from a graph that can be launched. */
    CACHALOT(cachalot_empty_cache(allocator, 0));
  }
  CUDA(cuStreamSynchronize(stream));
  CUDA(cuMemcpyDtoH(&host, address(findings), sizeof host));
  printf("graph_capture: %d launches, %llu bytes wrong\n", LAUNCHES, (unsigned long long)host.wrong_bytes);
  EXPECT(host.wrong_bytes == 0);
  CACHALOT(cachalot_get_block(allocator, result, &block));
  EXPECT(block.base == result && block.requested_bytes == BYTES);

  /* The graph goes first, then its use of the pool, then the program's own. */
  CUDA(cuGraphExecDestroy(executable));
  CACHALOT(cachalot_free(allocator, result));
  CACHALOT(cachalot_free(allocator, findings));
  CACHALOT(cachalot_get_pool_users(allocator, 0, pool, &users));
  EXPECT(users == 2);
  CACHALOT(cachalot_pool_release(allocator, 0, pool));
  CACHALOT(cachalot_pool_release(allocator, 0, pool));
  CACHALOT(cachalot_empty_cache(allocator, 0));
  CACHALOT(cachalot_find_statistic(allocator, 0, "reserved_bytes.all.current", &reserved));
  EXPECT(reserved == 0);
  end_stream(allocator, 0, stream);
  CACHALOT(cachalot_destroy(allocator));
  CUDA(cuModuleUnload(module));
  leave_device(0);
  return 0;
}
