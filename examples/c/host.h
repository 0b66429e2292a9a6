/*
 * What the example hosts share: checks that end the program, a device's context, and the test kernels.
 *
 * CACHALOT_KERNELS names the kernels: kernels.fatbin on a GPU, libcachalot_host_kernels.so on the emulated driver; both
 * are made by cuda-kernels/kernels/build.sh.
 */
#ifndef HOST_H
#define HOST_H

#include <cachalot.h>
#include <cuda.h>
/* After cuda.h, so that it can launch. */
#include <cachalot_kernels.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with what went wrong. */
#define CACHALOT(call)                                                                                 \
  do {                                                                                                 \
    const cachalot_status status_ = (call);                                                            \
    if (status_ != CACHALOT_OK) {                                                                      \
      fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, cachalot_status_name(status_), \
              cachalot_last_error());                                                                  \
      exit(1);                                                                                         \
    }                                                                                                  \
  } while (0)

#define CUDA(call)                                                                      \
  do {                                                                                  \
    const CUresult result_ = (call);                                                    \
    if (result_ != CUDA_SUCCESS) {                                                      \
      fprintf(stderr, "%s:%d: %s: code %d\n", __FILE__, __LINE__, #call, (int)result_); \
      exit(1);                                                                          \
    }                                                                                   \
  } while (0)

#define EXPECT(condition)                                                           \
  do {                                                                              \
    if (!(condition)) {                                                             \
      fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                      \
    }                                                                               \
  } while (0)

/* A block's address as the driver's own type. */
static inline CUdeviceptr address(const void *block) {
  return (CUdeviceptr)(uintptr_t)block;
}

/* Makes a device's primary context, which the allocator uses too, the calling thread's. */
static inline CUcontext enter_device(int ordinal) {
  CUdevice device;
  CUcontext context;
  CUDA(cuInit(0));
  CUDA(cuDeviceGet(&device, ordinal));
  CUDA(cuDevicePrimaryCtxRetain(&context, device));
  CUDA(cuCtxSetCurrent(context));
  return context;
}

/* Gives the context back. */
static inline void leave_device(int ordinal) {
  CUdevice device;
  CUDA(cuDeviceGet(&device, ordinal));
  CUDA(cuCtxSetCurrent(NULL));
  CUDA(cuDevicePrimaryCtxRelease(device));
}

/* Loads the kernels into the current context. */
static inline CUmodule load_kernels(void) {
  const char *path = getenv("CACHALOT_KERNELS");
  CUmodule module;
  if (path == NULL) {
    fprintf(stderr, "CACHALOT_KERNELS is not set: `cuda-kernels/kernels/build.sh OUT` makes OUT/kernels.fatbin for GPUs and "
            "OUT/libcachalot_host_kernels.so for the emulated driver\n");
    exit(1);
  }
  if (strstr(path, ".so") != NULL) {
    char image[4096];
    snprintf(image, sizeof image, "%s%s", CACHALOT_KERNELS_EMULATED, path);
    CUDA(cuModuleLoadData(&module, image));
  } else {
    FILE *file = fopen(path, "rb");
    char *image = NULL;
    long bytes = 0;
    EXPECT(file != NULL && fseek(file, 0, SEEK_END) == 0 && (bytes = ftell(file)) > 0 && fseek(file, 0, SEEK_SET) == 0);
    image = malloc((size_t)bytes);
    EXPECT(image != NULL && fread(image, 1, (size_t)bytes, file) == (size_t)bytes && fclose(file) == 0);
    CUDA(cuModuleLoadData(&module, image));
    free(image);
  }
  return module;
}

static inline CUfunction kernel(CUmodule module, const char *name) {
  CUfunction function;
  CUDA(cuModuleGetFunction(&function, module, name));
  return function;
}

/* A stream that is not ordered with the default one. */
static inline CUstream new_stream(void) {
  CUstream stream;
  CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

/* Tells the allocator before the stream is destroyed. */
static inline void end_stream(const cachalot_allocator *allocator, int device, CUstream stream) {
  CUDA(cuStreamSynchronize(stream));
  CACHALOT(cachalot_stream_destroyed(allocator, device, stream));
  CUDA(cuStreamDestroy(stream));
}

#endif
