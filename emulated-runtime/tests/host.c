/* A program of the CUDA runtime, as a compiler would make it: the code that nvcc puts around a kernel is written out. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;
typedef struct {
  unsigned x, y, z;
} dim3;
typedef struct {
  int x, y, z, w, kind;
} channel;
channel cudaCreateChannelDesc(int, int, int, int, int);

enum { TO_DEVICE = 1, TO_HOST = 2, ON_DEVICE = 3, BY_ADDRESS = 4 };

int cudaGetDeviceCount(int *), cudaGetDevice(int *), cudaSetDevice(int), cudaDeviceSynchronize(void);
int cudaDeviceGetAttribute(int *, int, int), cudaDeviceGetStreamPriorityRange(int *, int *);
int cudaRuntimeGetVersion(int *), cudaDriverGetVersion(int *), cudaMemGetInfo(size_t *, size_t *);
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMallocHost(void **, size_t), cudaFreeHost(void *);
int cudaMallocAsync(void **, size_t, handle), cudaFreeAsync(void *, handle);
int cudaDeviceGetDefaultMemPool(handle *, int), cudaMemPoolSetAttribute(handle, int, void *);
int cudaMemPoolGetAttribute(handle, int, void *), cudaMemPoolTrimTo(handle, size_t);
int cudaMemset(void *, int, size_t), cudaMemsetAsync(void *, int, size_t, handle);
int cudaMemcpy(void *, const void *, size_t, int), cudaMemcpyAsync(void *, const void *, size_t, int, handle);
int cudaStreamCreate(handle *), cudaStreamCreateWithFlags(handle *, unsigned);
int cudaStreamCreateWithPriority(handle *, unsigned, int), cudaStreamDestroy(handle);
int cudaStreamSynchronize(handle), cudaStreamQuery(handle), cudaStreamWaitEvent(handle, handle, unsigned);
int cudaStreamGetFlags(handle, unsigned *), cudaStreamGetPriority(handle, int *);
int cudaLaunchHostFunc(handle, void (*)(void *), void *);
int cudaEventCreate(handle *), cudaEventCreateWithFlags(handle *, unsigned), cudaEventDestroy(handle);
int cudaEventRecord(handle, handle), cudaEventQuery(handle), cudaEventSynchronize(handle);
int cudaEventElapsedTime(float *, handle, handle);
int cudaStreamBeginCapture(handle, int), cudaStreamEndCapture(handle, handle *), cudaStreamIsCapturing(handle, int *);
int cudaGraphInstantiate(handle *, handle, unsigned long long), cudaGraphLaunch(handle, handle);
int cudaGraphExecDestroy(handle), cudaGraphDestroy(handle);
int cudaGetLastError(void), cudaPeekAtLastError(void);
int cudaGetDeviceProperties(void *, int), cudaDeviceGetPCIBusId(char *, int, int), cudaDeviceReset(void);
int cudaDeviceGetP2PAttribute(int *, int, int, int), cudaSetDeviceFlags(unsigned), cudaDeviceSetCacheConfig(int);
int cudaPointerGetAttributes(void *, const void *), cudaProfilerStart(void), cudaProfilerStop(void);
int cudaMallocPitch(void **, size_t *, size_t, size_t), cudaMallocManaged(void **, size_t, unsigned);
int cudaHostRegister(void *, size_t, unsigned), cudaHostUnregister(void *);
int cudaHostGetDevicePointer(void **, void *, unsigned);
int cudaMemset2D(void *, size_t, int, size_t, size_t), cudaMemset2DAsync(void *, size_t, int, size_t, size_t, handle);
int cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
int cudaMemcpy2DAsync(void *, size_t, const void *, size_t, size_t, size_t, int, handle);
int cudaFuncSetAttribute(const void *, int, int);
int cudaFuncSetCacheConfig(const void *, int), cudaLaunchCooperativeKernel(const void *, dim3, dim3, void **, size_t, handle);
int cudaGraphInstantiateWithFlags(handle *, handle, unsigned long long), cudaGraphGetNodes(handle, handle *, size_t *);
int cudaStreamGetCaptureInfo(handle, int *, unsigned long long *, handle *, const handle **, const void **, size_t *);
int cudaStreamAddCallback(handle, void (*)(handle, int, void *), void *, unsigned), cudaGetSymbolAddress(void **, void *);
const char *cudaGetErrorName(int), *cudaGetErrorString(int);
int cudaFuncGetAttributes(void *, const void *);
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *, const void *, int, size_t);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, handle);
int cudaLaunchKernelExC(const void *, const void *, void **);
int cudaGetDriverEntryPointByVersion(const char *, void **, unsigned, unsigned long long, int *);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFatBinaryEnd(void **), __cudaUnregisterFatBinary(void **);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, handle);
int __cudaPopCallConfiguration(dim3 *, dim3 *, size_t *, void *);
int __cudaGetKernel(handle *, const void *), __cudaLaunchKernel(handle, dim3, dim3, void **, size_t, handle);

#define EXPECT(expected, call)                                                                                  \
  do {                                                                                                          \
    const int code_ = (int)(call);                                                                              \
    if (code_ != (int)(expected)) {                                                                             \
      fprintf(stderr, "line %d: %s: %d (%s)\n", __LINE__, #call, code_, cudaGetErrorName(code_));              \
      exit(1);                                                                                                  \
    }                                                                                                           \
  } while (0)
#define CHECK(call) EXPECT(0, call)

enum { COUNT = 1000 };

/* fill<<<grid, block, 0, stream>>>(values, value): what nvcc makes of a kernel on the host, and of its launch. */
static void fill(long long *values, long long value) {
  void *arguments[] = {&values, &value};
  handle kernel, stream;
  dim3 grid, block;
  size_t shared_bytes;
  CHECK(__cudaGetKernel(&kernel, (const void *)fill));
  CHECK(__cudaPopCallConfiguration(&grid, &block, &shared_bytes, &stream));
  (void)__cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}
static void launch_fill(dim3 grid, dim3 block, handle stream, long long *values, long long value) {
  if (__cudaPushCallConfiguration(grid, block, 0, stream) == 0) fill(values, value);
}
static void unknown(void) {}
static void missing(void) {}

static const dim3 GRID = {4, 1, 1}, BLOCK = {256, 1, 1};

static void devices(void) {
  int count, device, value, least, greatest;
  size_t free_bytes, total;
  CHECK(cudaGetDeviceCount(&count));
  EXPECT(2, count);
  CHECK(cudaGetDevice(&device));
  EXPECT(0, device);
  CHECK(cudaDeviceGetAttribute(&value, 75, 0));
  EXPECT(9, value);
  CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  EXPECT(1, greatest < least);
  CHECK(cudaRuntimeGetVersion(&value));
  EXPECT(13000, value);
  CHECK(cudaDriverGetVersion(&value));
  EXPECT(13000, value);
  CHECK(cudaMemGetInfo(&free_bytes, &total));
  EXPECT(1, free_bytes <= total && total == (size_t)1 << 30);
  EXPECT(101, cudaSetDevice(2));
  CHECK(cudaSetDevice(1));
  CHECK(cudaGetDevice(&device));
  EXPECT(1, device);
  CHECK(cudaSetDevice(0));
}

static void errors(void) {
  EXPECT(101, cudaPeekAtLastError());
  EXPECT(101, cudaGetLastError());
  CHECK(cudaGetLastError());
  EXPECT(0, strcmp(cudaGetErrorName(2), "cudaErrorMemoryAllocation"));
  EXPECT(0, strcmp(cudaGetErrorString(2), "out of memory"));
  EXPECT(0, strcmp(cudaGetErrorString(98), "invalid device function"));
  EXPECT(0, strcmp(cudaGetErrorName(4242), "unrecognized error code"));
}

static void memory(void) {
  void *address, *other, *host, *pool;
  unsigned long long value = ~0ull;
  unsigned char bytes[16] = {1, 2, 3}, back[16] = {0};
  handle stream;
  CHECK(cudaMalloc(&address, 0));
  EXPECT(1, address == NULL);
  CHECK(cudaFree(NULL));
  EXPECT(2, cudaMalloc(&address, (size_t)1 << 50));
  CHECK(cudaMalloc(&address, 16));
  CHECK(cudaMalloc(&other, 16));
  CHECK(cudaMemcpy(address, bytes, 16, TO_DEVICE));
  CHECK(cudaMemcpy(other, address, 16, ON_DEVICE));
  CHECK(cudaMemcpy(back, other, 16, TO_HOST));
  EXPECT(0, memcmp(bytes, back, 16));
  CHECK(cudaMemset(other, 7, 16));
  CHECK(cudaMemcpy(back, other, 16, BY_ADDRESS));
  EXPECT(7, back[15]);
  EXPECT(21, cudaMemcpy(back, other, 16, 9));
  EXPECT(1, cudaMemcpy(back, bytes, 16, TO_DEVICE));
  CHECK(cudaFree(other));
  EXPECT(1, cudaFree(other));
  CHECK(cudaFree(address));
  CHECK(cudaMallocHost(&host, 100));
  memset(host, 1, 100);
  CHECK(cudaFreeHost(host));

  CHECK(cudaStreamCreateWithFlags(&stream, 1));
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cudaMemPoolSetAttribute(pool, 4, &value));
  CHECK(cudaMallocAsync(&address, 5 << 20, stream));
  CHECK(cudaMemsetAsync(address, 3, 5 << 20, stream));
  CHECK(cudaMemcpyAsync(back, address, 16, TO_HOST, stream));
  CHECK(cudaFreeAsync(address, stream));
  CHECK(cudaStreamSynchronize(stream));
  EXPECT(3, back[0]);
  CHECK(cudaMemPoolGetAttribute(pool, 5, &value));
  EXPECT(6 << 20, value);
  CHECK(cudaMemPoolTrimTo(pool, 0));
  CHECK(cudaStreamDestroy(stream));
}

/* What a device is, as nvcc's programs print it first, and what an address is. */
static void properties(void) {
  struct {
    char name[256], uuid[16];
    int others[184];
  } device;
  struct {
    int kind, device;
    void *device_address, *host_address;
    long reserved[8];
  } of;
  char place[32], *host = malloc(4096);
  int can = -1;
  void *address, *managed, *seen;
  CHECK(cudaGetDeviceProperties(&device, 1));
  EXPECT(0, strcmp(device.name, "Emulated device 1"));
  EXPECT(1, device.uuid[15]);
  EXPECT(1 << 30, *(size_t *)((char *)&device + 288));
  EXPECT(49152, *(size_t *)((char *)&device + 296));
  EXPECT(32, *(int *)((char *)&device + 308));
  EXPECT(1024, *(int *)((char *)&device + 320));
  EXPECT(9, *(int *)((char *)&device + 360));
  EXPECT(4, *(int *)((char *)&device + 384));
  EXPECT(2, *(int *)((char *)&device + 568));
  EXPECT(2048, *(int *)((char *)&device + 604));
  EXPECT(1024, *(size_t *)((char *)&device + 696));
  EXPECT(101, cudaGetDeviceProperties(&device, 2));
  EXPECT(1, cudaGetDeviceProperties(NULL, 0));
  CHECK(cudaDeviceGetPCIBusId(place, sizeof place, 1));
  EXPECT(0, strcmp(place, "0000:02:00.0"));
  CHECK(cudaDeviceGetP2PAttribute(&can, 2, 0, 1));
  EXPECT(1, can);
  EXPECT(1, cudaDeviceGetP2PAttribute(&can, 9, 0, 1));
  CHECK(cudaSetDeviceFlags(4));
  CHECK(cudaDeviceSetCacheConfig(1));
  CHECK(cudaProfilerStart());
  CHECK(cudaProfilerStop());

  CHECK(cudaSetDevice(1));
  CHECK(cudaMalloc(&address, 512));
  CHECK(cudaPointerGetAttributes(&of, (char *)address + 8));
  EXPECT(2, of.kind);
  EXPECT(1, of.device);
  EXPECT(1, of.device_address == (char *)address + 8 && of.host_address == NULL);
  CHECK(cudaMallocManaged(&managed, 512, 1));
  CHECK(cudaPointerGetAttributes(&of, managed));
  EXPECT(3, of.kind);
  CHECK(cudaPointerGetAttributes(&of, host));
  EXPECT(0, of.kind);
  CHECK(cudaHostRegister(host, 4096, 0));
  CHECK(cudaPointerGetAttributes(&of, host));
  EXPECT(1, of.kind);
  CHECK(cudaHostGetDevicePointer(&seen, host, 0));
  EXPECT(1, seen == of.device_address);
  CHECK(cudaHostUnregister(host));
  free(host);

  /* The device is new after a reset, and so is its memory. */
  CHECK(cudaDeviceReset());
  EXPECT(1, cudaFree(address));
  CHECK(cudaGetDevice(&can));
  EXPECT(1, can);
  CHECK(cudaMalloc(&address, 512));
  CHECK(cudaFree(address));
  CHECK(cudaSetDevice(0));
  cudaGetLastError();
}

static void rows(void) {
  unsigned char bytes[2][8] = {{1, 2, 3, 4, 5, 6, 7, 8}, {9, 10, 11, 12, 13, 14, 15, 16}}, back[2][4];
  void *address;
  size_t pitch;
  CHECK(cudaMallocPitch(&address, &pitch, 8, 2));
  EXPECT(1, pitch >= 8);
  CHECK(cudaMemcpy2D(address, pitch, bytes, 8, 8, 2, TO_DEVICE));
  CHECK(cudaMemcpy2D(back, 4, (char *)address + 2, pitch, 4, 2, TO_HOST));
  EXPECT(3, back[0][0]);
  EXPECT(14, back[1][3]);
  CHECK(cudaMemset2D((char *)address + 3, pitch, 77, 1, 2));
  CHECK(cudaMemset2DAsync((char *)address + 4, pitch, 78, 1, 1, NULL));
  CHECK(cudaMemcpy2DAsync(back, 4, (char *)address + 2, pitch, 4, 2, BY_ADDRESS, NULL));
  CHECK(cudaDeviceSynchronize());
  EXPECT(77, back[0][1]);
  EXPECT(78, back[0][2]);
  EXPECT(77, back[1][1]);
  EXPECT(13, back[1][2]);
  EXPECT(21, cudaMemcpy2D(back, 4, address, pitch, 4, 2, 9));
  CHECK(cudaFree(address));
  cudaGetLastError();
}

static void count_one(void *argument) { ++*(int *)argument; }

static void count_back(handle stream, int code, void *argument) { *(int *)argument += 10 + code + (stream == NULL); }

static void streams(void) {
  handle first, second, event, from, to, graph, executable;
  unsigned flags;
  int priority, counted = 0, capturing;
  float milliseconds = -1;
  unsigned long long id = 0;
  handle captured;
  const handle *nodes;
  const void *edges = "";
  size_t size = 0;
  CHECK(cudaStreamCreate(&first));
  CHECK(cudaStreamCreateWithPriority(&second, 1, -1));
  CHECK(cudaStreamGetFlags(second, &flags));
  CHECK(cudaStreamGetPriority(second, &priority));
  EXPECT(1, flags == 1 && priority == -1);
  CHECK(cudaEventCreateWithFlags(&event, 2));
  CHECK(cudaEventCreate(&from));
  CHECK(cudaEventCreate(&to));
  CHECK(cudaEventRecord(from, first));
  CHECK(cudaLaunchHostFunc(first, count_one, &counted));
  CHECK(cudaEventRecord(to, first));
  CHECK(cudaEventRecord(event, first));
  CHECK(cudaStreamWaitEvent(second, event, 0));
  CHECK(cudaStreamSynchronize(second));
  CHECK(cudaStreamQuery(first));
  CHECK(cudaEventQuery(event));
  CHECK(cudaEventElapsedTime(&milliseconds, from, to));
  EXPECT(1, counted == 1 && milliseconds >= 0);
  CHECK(cudaStreamAddCallback(second, count_back, &counted, 0));
  EXPECT(1, cudaStreamAddCallback(second, count_back, &counted, 1));
  CHECK(cudaStreamSynchronize(second));
  EXPECT(11, counted);
  counted = 1;

  CHECK(cudaStreamBeginCapture(second, 0));
  CHECK(cudaStreamIsCapturing(second, &capturing));
  EXPECT(1, capturing);
  EXPECT(900, cudaStreamAddCallback(second, count_back, &counted, 0));
  CHECK(cudaLaunchHostFunc(second, count_one, &counted));
  CHECK(cudaStreamGetCaptureInfo(second, &capturing, &id, &captured, &nodes, &edges, &size));
  EXPECT(1, capturing == 1 && id != 0 && edges == NULL && size == 1);
  CHECK(cudaStreamEndCapture(second, &graph));
  CHECK(cudaGraphGetNodes(graph, NULL, &size));
  EXPECT(1, size);
  EXPECT(801, cudaGetSymbolAddress(NULL, NULL));
  const channel described = cudaCreateChannelDesc(8, 0, 0, 32, 1);
  EXPECT(1, described.x == 8 && described.y == 0 && described.w == 32 && described.kind == 1);
  CHECK(cudaGraphInstantiateWithFlags(&executable, graph, 0));
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CHECK(cudaGraphLaunch(executable, second));
  CHECK(cudaGraphLaunch(executable, second));
  CHECK(cudaDeviceSynchronize());
  EXPECT(3, counted);
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaEventDestroy(event));
  CHECK(cudaEventDestroy(from));
  CHECK(cudaEventDestroy(to));
  CHECK(cudaEventSynchronize(NULL) == 400 ? 0 : 1);
  CHECK(cudaStreamDestroy(first));
  CHECK(cudaStreamDestroy(second));
}

static void launches(void) {
  struct {
    dim3 grid, block;
    size_t shared_bytes;
    handle stream;
    void *attributes;
    unsigned attribute_count;
  } config = {{4, 1, 1}, {256, 1, 1}, 0, NULL, NULL, 0};
  const dim3 none = {0, 1, 1}, many = {1024, 2, 1};
  long long *values, found[COUNT], value = 9;
  void *arguments[] = {&values, &value}, *entry;
  size_t attributes[18];
  handle stream;
  int blocks, status;
  cudaGetLastError();
  CHECK(cudaStreamCreateWithFlags(&stream, 1));
  CHECK(cudaMalloc((void **)&values, sizeof found));
  launch_fill(GRID, BLOCK, stream, values, 8);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpyAsync(found, values, sizeof found, TO_HOST, stream));
  CHECK(cudaStreamSynchronize(stream));
  EXPECT(1, found[0] == 8 && found[COUNT - 1] == 8);
  CHECK(cudaLaunchKernel((const void *)fill, GRID, BLOCK, arguments, 0, NULL));
  CHECK(cudaLaunchCooperativeKernel((const void *)fill, GRID, BLOCK, arguments, 0, NULL));
  CHECK(cudaMemcpy(found, values, sizeof found, TO_HOST));
  EXPECT(1, found[0] == 9 && found[COUNT - 1] == 9);
  value = 10;
  CHECK(cudaLaunchKernelExC(&config, (const void *)fill, arguments));
  CHECK(cudaMemcpy(found, values, sizeof found, TO_HOST));
  EXPECT(10, found[COUNT - 1]);
  config.attribute_count = 1;
  EXPECT(801, cudaLaunchKernelExC(&config, (const void *)fill, arguments));

  launch_fill(none, BLOCK, stream, values, 8);
  EXPECT(9, cudaGetLastError());
  launch_fill(GRID, many, stream, values, 8);
  EXPECT(9, cudaGetLastError());
  EXPECT(98, cudaLaunchKernel((const void *)unknown, GRID, BLOCK, arguments, 0, NULL));
  EXPECT(209, cudaLaunchKernel((const void *)missing, GRID, BLOCK, arguments, 0, NULL));
  CHECK(cudaFuncSetCacheConfig((const void *)fill, 1));
  CHECK(cudaFuncGetAttributes(attributes, (const void *)fill));
  EXPECT(1024, (int)attributes[3]);
  /* Numbers of 4 bytes: registers, two versions, the cache, and the shared memory that a launch may ask for. */
  const int *const numbers = (const int *)&attributes[3];
  EXPECT(90, numbers[2]);
  EXPECT(48 << 10, numbers[5]);
  CHECK(cudaFuncSetAttribute((const void *)fill, 8, 64 << 10));
  CHECK(cudaFuncGetAttributes(attributes, (const void *)fill));
  EXPECT(64 << 10, numbers[5]);
  EXPECT(1, cudaFuncSetAttribute((const void *)fill, 8, 1 << 20));
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)fill, 256, 0));
  EXPECT(8, blocks);
  CHECK(cudaGetDriverEntryPointByVersion("cuMemAllocAsync", &entry, 12000, 0, &status));
  EXPECT(1, entry != NULL && status == 0);
  CHECK(cudaFree(values));
  CHECK(cudaStreamDestroy(stream));
}

int main(void) {
  void **binary = __cudaRegisterFatBinary(NULL);
  __cudaRegisterFunction(binary, (const char *)fill, "_Z4fillPxx", "_Z4fillPxx", -1, NULL, NULL, NULL, NULL, NULL);
  __cudaRegisterFunction(binary, (const char *)missing, "_Z7missingv", "_Z7missingv", -1, NULL, NULL, NULL, NULL, NULL);
  __cudaRegisterFatBinaryEnd(binary);
  devices();
  errors();
  memory();
  properties();
  rows();
  streams();
  launches();
  __cudaUnregisterFatBinary(binary);
  puts("well");
  return 0;
}
