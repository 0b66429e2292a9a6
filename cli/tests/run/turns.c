// Holds blocks, and in each round fills them, pauses, and checks every byte: a program whose memory may sleep between the rounds.
//
// usage: turns VALUE ROUNDS PAUSE_MS
#include "driver.h"

#include <string.h>
#include <unistd.h>

enum { BLOCKS = 3, BYTES = 10 << 20 };

static void check(int code, const char *what, int round) {
  if (code) {
    printf("%s: %d in round %d\n", what, code, round);
    exit(1);
  }
}

int main(int argc, char **argv) {
  int value = argc > 1 ? atoi(argv[1]) : 1, rounds = argc > 2 ? atoi(argv[2]) : 4, pause_ms = argc > 3 ? atoi(argv[3]) : 5;
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) return 1;
  int (*init)(unsigned) = function("cuInit");
  int (*retain)(void **, int) = function("cuDevicePrimaryCtxRetain");
  int (*set)(void *) = function("cuCtxSetCurrent");
  int (*make)(void **, unsigned) = function("cuStreamCreate");
  int (*wait)(void *) = function("cuStreamSynchronize");
  int (*alloc)(unsigned long long *, size_t) = function("cuMemAlloc_v2");
  int (*release)(unsigned long long) = function("cuMemFree_v2");
  int (*fill)(unsigned long long, unsigned char, size_t, void *) = function("cuMemsetD8Async");
  int (*copy)(void *, unsigned long long, size_t) = function("cuMemcpyDtoH_v2");
  void *context, *stream;
  unsigned long long blocks[BLOCKS];
  unsigned char *host = malloc(BYTES);
  check(init(0), "cuInit", 0);
  check(retain(&context, 0), "cuDevicePrimaryCtxRetain", 0);
  check(set(context), "cuCtxSetCurrent", 0);
  check(make(&stream, 1), "cuStreamCreate", 0);
  for (int i = 0; i < BLOCKS; i++) check(alloc(&blocks[i], BYTES), "cuMemAlloc", 0);
  for (int round = 0; round < rounds; round++) {
    unsigned char byte = (unsigned char)(value * 16 + round);
    for (int i = 0; i < BLOCKS; i++) check(fill(blocks[i], (unsigned char)(byte + i), BYTES, stream), "cuMemsetD8Async", round);
    check(wait(stream), "cuStreamSynchronize", round);
    usleep((unsigned)pause_ms * 1000);
    for (int i = 0; i < BLOCKS; i++) {
      check(copy(host, blocks[i], BYTES), "cuMemcpyDtoH", round);
      for (int at = 0; at < BYTES; at++)
        if (host[at] != (unsigned char)(byte + i)) {
          printf("round %d, block %d, byte %d: %d in place of %d\n", round, i, at, host[at], (unsigned char)(byte + i));
          return 1;
        }
    }
  }
  for (int i = 0; i < BLOCKS; i++) check(release(blocks[i]), "cuMemFree", rounds);
  printf("%d rounds\n", rounds);
  return 0;
}
