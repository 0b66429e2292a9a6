// A program with the memory of llama.cpp: weights in a few large blocks filled from the host, a cache of keys and values that grows,
// temporary memory mapped by the program itself (cuMemCreate), matrix products by cuBLAS, and a CUDA graph of a token. Makes some
// tokens at each line of the standard input, and prints them. The output is the same in every run.
//
// usage: tokens MIB
#include "check.h"

#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime.h>

#include <vector>

namespace {

constexpr int WIDTH = 4096;
constexpr int LAYERS_PER_BLOCK = 4;
constexpr size_t MATRIX = size_t(WIDTH) * WIDTH;
constexpr int TOKENS = 8;

// Temporary memory as llama.cpp's pool has it: an address range, with memory mapped into it by the program.
float *mapped(size_t bytes) {
  CUdeviceptr address;
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle;
  CHECK(cuMemAddressReserve(&address, size_t(1) << 35, 0, 0, 0));
  CHECK(cuMemCreate(&handle, bytes, &prop, 0));
  CHECK(cuMemMap(address, bytes, 0, handle, 0));
  CHECK(cuMemRelease(handle));
  CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CHECK(cuMemSetAccess(address, bytes, &access, 1));
  return reinterpret_cast<float *>(address);
}

__global__ void activate(float *out, const float *in, float *cache, const int *position) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  float value = in[at] / (1.0f + fabsf(in[at]));
  cache[size_t(*position % 512) * WIDTH + at] = value;
  out[at] = value + 0.5f * cache[size_t((*position + 511) % 512) * WIDTH + at];
}

__global__ void choose(const float *values, int *position, int *token) {
  unsigned best = 0;
  for (int at = 1; at < WIDTH; at++)
    if (values[at] > values[best]) best = at;
  *token = int(best);
  *position += 1;
}

} // namespace

int main(int argc, char **argv) {
  size_t mib = argc > 1 ? size_t(atoll(argv[1])) : 1024;
  size_t layers = (mib << 20) / (MATRIX * sizeof(float));
  std::vector<float> host(MATRIX);
  uint64_t state = 3;
  for (float &value : host) value = (float(next_number(&state) % 2001) - 1000.0f) / 40000.0f;
  CHECK(cudaFree(nullptr));
  std::vector<float *> weights;
  for (size_t layer = 0; layer < layers; layer++) {
    if (layer % LAYERS_PER_BLOCK == 0) {
      size_t count = layers - layer < LAYERS_PER_BLOCK ? layers - layer : LAYERS_PER_BLOCK;
      float *block;
      CHECK(cudaMalloc(&block, count * MATRIX * sizeof(float)));
      for (size_t i = 0; i < count; i++) weights.push_back(block + i * MATRIX);
    }
    // A different beginning for each layer.
    size_t turn = (layer * 7919) % MATRIX;
    CHECK(cudaMemcpy(weights[layer], host.data() + turn, (MATRIX - turn) * sizeof(float), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(weights[layer] + (MATRIX - turn), host.data(), turn * sizeof(float), cudaMemcpyHostToDevice));
  }
  float *cache, *scratch = mapped(64 << 20), *from = scratch, *to = scratch + (1 << 20);
  int *position, *token;
  CHECK(cudaMalloc(&cache, size_t(512) * WIDTH * sizeof(float)));
  CHECK(cudaMemset(cache, 0, size_t(512) * WIDTH * sizeof(float)));
  CHECK(cudaMalloc(&position, sizeof *position));
  CHECK(cudaMalloc(&token, sizeof *token));
  CHECK(cudaMemset(position, 0, sizeof *position));
  CHECK(cudaMemcpy(from, host.data(), WIDTH * sizeof(float), cudaMemcpyHostToDevice));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cublasHandle_t blas;
  CHECK(cublasCreate(&blas));
  CHECK(cublasSetStream(blas, stream));
  float one = 1.0f, zero = 0.0f;
  auto step = [&] {
    for (float *weight : weights) {
      CHECK(cublasSgemv(blas, CUBLAS_OP_N, WIDTH, WIDTH, &one, weight, WIDTH, from, 1, &zero, to, 1));
      activate<<<WIDTH / 256, 256, 0, stream>>>(from, to, cache, position);
    }
    choose<<<1, 1, 0, stream>>>(from, position, token);
  };
  step();
  CHECK(cudaStreamSynchronize(stream));
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  step();
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&ready, graph, 0));
  printf("ready\n");
  fflush(stdout);
  char line[64];
  while (fgets(line, sizeof line, stdin)) {
    for (int i = 0; i < TOKENS; i++) {
      int chosen;
      CHECK(cudaGraphLaunch(ready, stream));
      CHECK(cudaMemcpyAsync(&chosen, token, sizeof chosen, cudaMemcpyDeviceToHost, stream));
      CHECK(cudaStreamSynchronize(stream));
      printf("%d ", chosen);
    }
    printf("\n");
    fflush(stdout);
  }
  return 0;
}
