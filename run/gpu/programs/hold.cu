// Takes memory of the GPU until no more than the given MiB are free, prints "ready", and holds it until the standard input ends.
//
// usage: hold MIB
#include "check.h"

#include <cuda_runtime.h>

int main(int argc, char **argv) {
  size_t leave = size_t(argc > 1 ? atoll(argv[1]) : 1024) << 20, available, total;
  void *block;
  CHECK(cudaMemGetInfo(&available, &total));
  while (available > leave + (size_t(64) << 20)) {
    CHECK(cudaMalloc(&block, size_t(64) << 20));
    CHECK(cudaMemGetInfo(&available, &total));
  }
  printf("ready\n");
  fflush(stdout);
  char line[64];
  while (fgets(line, sizeof line, stdin)) {
  }
  return 0;
}
