/*
 * An allocator in a context that the program creates, used with other contexts current, with none, and from another
 * thread: the calling thread's context is the same after every call, even after one that fails.
 */
#include "host.h"

#include <pthread.h>

/* Contexts that a program creates; cuda.h declares only the newest of these functions. */
extern CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
extern CUresult cuCtxDestroy_v2(CUcontext context);

static CUcontext current(void) {
  CUcontext context;
  CUDA(cuCtxGetCurrent(&context));
  return context;
}

/* Everything that calls the driver, with whatever context is current. */
static void use(const cachalot_allocator *allocator) {
  const CUcontext before = current();
  cachalot_device_info device = CACHALOT_DEVICE_INFO_INIT;
  cachalot_status failed;
  void *block = NULL, *none = NULL;
  CACHALOT(cachalot_malloc(allocator, 0, 30 << 20, NULL, &block));
  EXPECT(current() == before);
  CACHALOT(cachalot_record_stream(allocator, block, CU_STREAM_PER_THREAD));
  EXPECT(current() == before);
  CACHALOT(cachalot_free(allocator, block));
  EXPECT(current() == before);
  CACHALOT(cachalot_get_device_info(allocator, 0, &device));
  EXPECT(current() == before && device.simulated == 0);
  failed = cachalot_malloc(allocator, 0, device.total_bytes * 2, NULL, &none);
  EXPECT(current() == before && failed == CACHALOT_ERROR_OUT_OF_MEMORY);
  CACHALOT(cachalot_empty_cache(allocator, 0));
  EXPECT(current() == before);
}

static void *use_elsewhere(void *allocator) {
  use(allocator);
  return NULL;
}

int main(void) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  const int ordinal = 0;
  void *contexts[1];
  CUcontext primary, own;
  CUdevice device;
  pthread_t thread;

  primary = enter_device(0);
  /* NULL takes the topmost context away. */
  CUDA(cuCtxSetCurrent(NULL));
  CUDA(cuDeviceGet(&device, 0));
  CUDA(cuCtxCreate_v2(&own, 0, device));
  CUDA(cuCtxSetCurrent(NULL));
  contexts[0] = own;
  options.device_count = 1;
  options.devices = &ordinal;
  options.contexts = contexts;
  CACHALOT(cachalot_create(&options, &allocator));
  EXPECT(current() == NULL);
  use(allocator);
  CUDA(cuCtxSetCurrent(primary));
  use(allocator);
  CUDA(cuCtxSetCurrent(own));
  use(allocator);
  EXPECT(pthread_create(&thread, NULL, use_elsewhere, allocator) == 0 && pthread_join(thread, NULL) == 0);
  CACHALOT(cachalot_destroy(allocator));
  /* The context is the program's still. */
  EXPECT(current() == own);
  CUDA(cuCtxSynchronize());
  CUDA(cuCtxDestroy_v2(own));
  leave_device(0);
  printf("own_context: the caller's context was never changed\n");
  return 0;
}
