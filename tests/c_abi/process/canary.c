/*
 * A program that writes the first byte behind one block and the last byte before another, and frees them. Runs on the emulated
 * driver. Prints both addresses, for the lines of the log.
 */
#include "../misuse/misuse.h"

unsigned cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
unsigned cuMemsetD8_v2(uint64_t, unsigned char, size_t), cuCtxSynchronize(void);

enum { BYTES = 4096, BLOCKS = 3 };

#define DRIVER(call) NEEDED((int)(call))

int main(void) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  void *context = NULL, *blocks[BLOCKS] = {NULL};
  const int first = 0;
  DRIVER(cuInit(0));
  DRIVER(cuDevicePrimaryCtxRetain(&context, 0));
  DRIVER(cuCtxSetCurrent(context));
  options.devices = &first;
  options.device_count = 1;
  options.config = "canary:True";
  NEEDED(cachalot_create(&options, &allocator));
  for (int number = 0; number < BLOCKS; ++number) NEEDED(cachalot_malloc(allocator, 0, BYTES, NULL, &blocks[number]));
  const uint64_t behind = (uint64_t)(uintptr_t)blocks[0] + BYTES, before = (uint64_t)(uintptr_t)blocks[2] - 1;
  DRIVER(cuMemsetD8_v2(behind, 7, 1));
  DRIVER(cuMemsetD8_v2(before, 7, 1));
  for (int number = 0; number < BLOCKS; ++number) NEEDED(cachalot_free(allocator, blocks[number]));
  DRIVER(cuCtxSynchronize());
  NEEDED(cachalot_process_events(allocator, 0));
  NEEDED(cachalot_destroy(allocator));
  printf("0x%llx 0x%llx\n", (unsigned long long)behind, (unsigned long long)before);
  return failures == 0 ? 0 : 1;
}
