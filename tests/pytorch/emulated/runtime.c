/*
 * The functions of the CUDA runtime that PyTorch calls before and between its kernels, and that the emulated runtime
 * lacks. Preloaded in front of the emulated runtime, for emulated.sh.
 *
 *   cc -shared -fPIC -isystem CUDA/include runtime.c -o libtorch_on_emulated.so -ldl
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <string.h>

/* A function of the emulated driver. */
static void *driver(const char *name) {
  static void *library;
  if (library == NULL) {
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  }
  return library == NULL ? NULL : dlsym(library, name);
}

CUresult not_emulated(void) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

/* PyTorch looks functions up that it calls only for memory that it maps itself. They fail when they are called. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
  typedef cudaError_t (*Own)(const char *, void **, unsigned int, unsigned long long,
                             enum cudaDriverEntryPointQueryResult *);
  const Own own = (Own)dlsym(RTLD_NEXT, "cudaGetDriverEntryPointByVersion");
  const cudaError_t found = own(symbol, function, version, flags, result);
  if (found == cudaSuccess && *function != NULL) {
    return found;
  }
  *function = (void *)not_emulated;
  if (result != NULL) {
    *result = cudaDriverEntryPointSuccess;
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
  memset(properties, 0, sizeof *properties);
  strcpy(properties->name, "emulated");
  size_t free_bytes = 0;
  const cudaError_t asked = cudaMemGetInfo(&free_bytes, &properties->totalGlobalMem);
  int *const values[] = {&properties->major, &properties->minor, &properties->multiProcessorCount};
  const enum cudaDeviceAttr attributes[] = {cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor,
                                            cudaDevAttrMultiProcessorCount};
  for (int number = 0; number < 3; ++number) {
    if (cudaDeviceGetAttribute(values[number], attributes[number], device) != cudaSuccess) {
      *values[number] = 0;
    }
  }
  properties->major = properties->major == 0 ? 9 : properties->major;
  properties->multiProcessorCount = properties->multiProcessorCount == 0 ? 1 : properties->multiProcessorCount;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->sharedMemPerBlock = 48 << 10;
  properties->unifiedAddressing = 1;
  return asked;
}

/* Device memory is what the driver has allocated or mapped, and pinned memory has an address for devices. */
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *at) {
  typedef CUresult (*Range)(CUdeviceptr *, size_t *, CUdeviceptr);
  typedef CUresult (*Pinned)(CUdeviceptr *, void *, unsigned int);
  memset(attributes, 0, sizeof *attributes);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  if (((Range)driver("cuMemGetAddressRange_v2"))(&base, &bytes, (CUdeviceptr)at) == CUDA_SUCCESS) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->devicePointer = (void *)at;
    return cudaGetDevice(&attributes->device);
  }
  if (((Pinned)driver("cuMemHostGetDevicePointer_v2"))(&base, (void *)at, 0) == CUDA_SUCCESS) {
    attributes->type = cudaMemoryTypeHost;
    attributes->devicePointer = (void *)at;
    attributes->hostPointer = (void *)at;
  }
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned int flags) {
  typedef CUresult (*Function)(void *, size_t, unsigned int);
  return (cudaError_t)((Function)driver("cuMemHostRegister_v2"))(memory, bytes, flags);
}

cudaError_t cudaHostUnregister(void *memory) {
  typedef CUresult (*Function)(void *);
  return (cudaError_t)((Function)driver("cuMemHostUnregister"))(memory);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count) {
  typedef CUresult (*Function)(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **,
                               size_t *);
  if (edges != NULL) {
    *edges = NULL;
  }
  return (cudaError_t)((Function)driver("cuStreamGetCaptureInfo_v2"))(stream, (CUstreamCaptureStatus *)status,
                                                                      (cuuint64_t *)id, graph, dependencies, count);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(exec, graph, flags);
}

/* PyTorch asks whether a graph is empty. No emulated graph is. */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  (void)graph;
  *count = 1;
  return nodes == NULL ? cudaSuccess : cudaErrorNotSupported;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
  typedef CUresult (*Function)(char *, int, CUdevice);
  return (cudaError_t)((Function)driver("cuDeviceGetPCIBusId"))(text, length, device);
}
