/* Calls the C interface as a recorded program did, on a simulated device. The profile of a release is made from such runs.
 *
 *   train CONFIG PASSES < OPERATIONS
 *
 * An operation is a line: `a SLOT BYTES STREAM` requests a block, `u SLOT STREAM` uses a block on a second stream, `f SLOT`
 * frees a block. Each pass ends with the free of all blocks. Prints a digest of all addresses: the same decisions have the same
 * digests. */
#include <cachalot.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define SLOTS (1u << 18)
#define OPERATIONS (1u << 20)

struct operation {
  char action;
  uint32_t slot;
  size_t bytes;
  uintptr_t stream;
};

static struct operation operations[OPERATIONS];
static void *blocks[SLOTS];

static void require(cachalot_status status) {
  if (status != CACHALOT_OK) {
    fprintf(stderr, "train: %s\n", cachalot_last_error());
    exit(1);
  }
}

static size_t read_operations(void) {
  char line[128];
  size_t count = 0;
  while (count < OPERATIONS && fgets(line, sizeof line, stdin)) {
    struct operation *to = &operations[count++];
    size_t first = 0;
    uintptr_t second = 0;
    if (sscanf(line, "%c %" SCNu32 " %zu %" SCNuPTR, &to->action, &to->slot, &first, &second) < 2 || to->slot >= SLOTS) {
      fprintf(stderr, "train: no operation: %s", line);
      exit(1);
    }
    to->bytes = first;
    to->stream = to->action == 'a' ? second : first;
  }
  return count;
}

static void run(const cachalot_allocator *allocator, const struct operation *operation, uint64_t *digest) {
  void **block = &blocks[operation->slot];
  switch (operation->action) {
  case 'a':
    require(cachalot_malloc(allocator, 0, operation->bytes, (cachalot_stream)operation->stream, block));
    *digest = (*digest ^ (uintptr_t)*block) * UINT64_C(0x100000001b3);
    break;
  case 'u':
    require(cachalot_record_stream(allocator, *block, (cachalot_stream)operation->stream));
    break;
  default:
    require(cachalot_free(allocator, *block));
    *block = NULL;
  }
}

int main(int count, char **arguments) {
  if (count != 3) {
    fprintf(stderr, "usage: train CONFIG PASSES < OPERATIONS\n");
    return 2;
  }
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  options.flags = CACHALOT_SIMULATED;
  options.config = arguments[1];
  options.simulated_bytes = UINT64_C(256) << 30;
  cachalot_allocator *allocator = NULL;
  require(cachalot_create(&options, &allocator));
  size_t end = read_operations();
  uint64_t digest = UINT64_C(0xcbf29ce484222325);
  for (long pass = atol(arguments[2]); pass > 0; pass--) {
    for (size_t at = 0; at < end; at++) {
      run(allocator, &operations[at], &digest);
    }
    for (size_t slot = 0; slot < SLOTS; slot++) {
      if (blocks[slot]) {
        require(cachalot_free(allocator, blocks[slot]));
        blocks[slot] = NULL;
      }
    }
  }
  require(cachalot_destroy(allocator));
  printf("%016" PRIx64 "\n", digest);
  return 0;
}
