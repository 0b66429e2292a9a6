// A process shares blocks by legacy IPC handles, a child opens them and writes, and the parent prints what it reads: a
// block of 4 MiB, and one of 64 KiB that may start in the middle of a segment.
#include "check.h"

#include <cuda_runtime.h>

#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

struct Offer {
  cudaIpcMemHandle_t handle;
  size_t bytes;
};

__global__ void add(unsigned char *bytes, size_t count) {
  for (size_t at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += size_t(gridDim.x) * blockDim.x)
    bytes[at] = bytes[at] + 1 + at % 7;
}

int child(int from, int to) {
  Offer offer;
  while (read(from, &offer, sizeof offer) == sizeof offer) {
    char answer = 0;
    void *opened = nullptr;
    cudaError_t error = cudaIpcOpenMemHandle(&opened, offer.handle, cudaIpcMemLazyEnablePeerAccess);
    if (error == cudaSuccess) {
      add<<<32, 256>>>(static_cast<unsigned char *>(opened), offer.bytes);
      CHECK(cudaDeviceSynchronize());
      CHECK(cudaIpcCloseMemHandle(opened));
    } else {
      // A refusal is an honest answer for a block inside a segment.
      answer = 1;
    }
    EXPECT(write(to, &answer, 1) == 1);
  }
  return 0;
}

} // namespace

int main() {
  int down[2], up[2];
  CHECK(pipe(down));
  CHECK(pipe(up));
  // The child is forked before the first call of the driver, which a forked process cannot make.
  pid_t pid = fork();
  EXPECT(pid >= 0);
  if (pid == 0) {
    close(down[1]);
    close(up[0]);
    return child(down[0], up[1]);
  }
  close(down[0]);
  close(up[1]);
  // Neighbours make the small block start in the middle of a segment.
  void *neighbours[5];
  for (void *&neighbour : neighbours) CHECK(cudaMalloc(&neighbour, 64 << 10));
  for (size_t bytes : {size_t(4) << 20, size_t(64) << 10, size_t(6) << 20}) {
    unsigned char *block;
    CHECK(cudaMalloc(reinterpret_cast<void **>(&block), bytes));
    CHECK(cudaMemset(block, 40, bytes));
    CHECK(cudaDeviceSynchronize());
    Offer offer{{}, bytes};
    cudaError_t error = cudaIpcGetMemHandle(&offer.handle, block);
    char answer = 1;
    if (error == cudaSuccess) {
      EXPECT(write(down[1], &offer, sizeof offer) == sizeof offer);
      EXPECT(read(up[0], &answer, 1) == 1);
    }
    std::vector<unsigned char> bytes_read(bytes);
    CHECK(cudaMemcpy(bytes_read.data(), block, bytes, cudaMemcpyDeviceToHost));
    uint64_t sum = 0;
    for (unsigned char byte : bytes_read) sum = sum * 31 + byte;
    // A shared block has the child's bytes, a refused one its own, and never another's.
    unsigned char want = answer == 0 ? 41 : 40;
    EXPECT(bytes_read[0] == want);
    printf("%zu bytes: %s\n", bytes, answer == 0 ? "shared" : "refused");
    CHECK(cudaFree(block));
  }
  close(down[1]);
  int status;
  EXPECT(waitpid(pid, &status, 0) == pid && status == 0);
  return 0;
}
