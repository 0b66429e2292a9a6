/*
 * A static plan: buffers with known lives get offsets, and the program needs one block for all of them.
 *
 *   plan [BUFFERS [DEADLINE_US]]
 */
#include <cachalot.h>

#include <stdio.h>
#include <stdlib.h>

/* The layers of a network: each reads the output of the layer before, and one of an earlier layer. */
static cachalot_buffer layer(size_t index) {
  const cachalot_buffer buffer = {
      .start = index,
      .end = index + (index % 7 == 0 ? 12 : 2),
      .bytes = 4096 * (1 + index * 7919 % 64),
      .alignment = 512,
  };
  return buffer;
}

int main(int count, char **texts) {
  const size_t buffers = count > 1 ? strtoull(texts[1], NULL, 10) : 200;
  const uint64_t deadline_us = count > 2 ? strtoull(texts[2], NULL, 10) : 1000000;
  cachalot_buffer_plan result = CACHALOT_BUFFER_PLAN_INIT;
  cachalot_buffer *program = calloc(buffers, sizeof *program);
  uint64_t *offsets = calloc(buffers, sizeof *offsets);
  uint64_t bytes = 0;
  size_t index;

  if (program == NULL || offsets == NULL) {
    return 1;
  }
  for (index = 0; index < buffers; ++index) {
    program[index] = layer(index);
    bytes += program[index].bytes;
  }
  if (cachalot_plan_buffers(program, buffers, 0, deadline_us, offsets, &result) != CACHALOT_OK) {
    fprintf(stderr, "%s\n", cachalot_last_error());
    return 1;
  }
  /* cachalot_malloc(allocator, device, result.peak_bytes, stream, &block): buffer i is at block + offsets[i]. */
  printf("plan: %zu buffers of %llu KiB in %llu KiB; no plan needs less than %llu KiB%s\n", buffers,
         (unsigned long long)bytes / 1024, (unsigned long long)result.peak_bytes / 1024,
         (unsigned long long)result.lower_bound_bytes / 1024, result.optimal ? ", which is proven" : "");
  free(program);
  free(offsets);
  return 0;
}
