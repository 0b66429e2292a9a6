/*
 * Guarded blocks on the emulated driver, which delivers memory faults as a device does: a use after the free, an overrun
 * and a missing cachalot_record_stream each break the context, and the library names the right block afterwards.
 *
 * guards SETTINGS CASE, with the case after_free, overrun, missing_record or clean.
 */
#include "streams.h"

#include <cachalot_kernels.h>

enum { bytes = 100000, first = 16 };

static int (*load)(void **module, const void *image);
static int (*find)(void **function, void *module, const char *name);
static int (*launch)(void *function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cachalot_stream,
                     void **, void **);
static int (*hold)(uint64_t stream);
static int (*let_go)(uint64_t stream);
static void (*deliver)(int on);
static uint64_t (*fault_address)(void);

static void find_functions(void) {
  void *library = dlopen(getenv("CACHALOT_LIBCUDA"), RTLD_LAZY | RTLD_NOLOAD);
  CHECK(library != NULL);
  *(void **)&load = dlsym(library, "cuModuleLoadData");
  *(void **)&find = dlsym(library, "cuModuleGetFunction");
  *(void **)&launch = dlsym(library, "cuLaunchKernel");
  *(void **)&hold = dlsym(library, "emu_hold_stream");
  *(void **)&let_go = dlsym(library, "emu_release_stream");
  *(void **)&deliver = dlsym(library, "emu_set_delivers_faults");
  *(void **)&fault_address = dlsym(library, "emu_fault_address");
}

/* Lets a kernel write `count` bytes at `at`. */
static void write_at(const void *at, size_t count, cachalot_stream stream) {
  static void *function = NULL;
  cachalot_kernel_arguments arguments;
  if (function == NULL) {
    char image[4096];
    void *module = NULL;
    snprintf(image, sizeof image, "%s%s", CACHALOT_KERNELS_EMULATED, getenv("CACHALOT_KERNELS"));
    CHECK(load(&module, image) == 0);
    CHECK(find(&function, module, CACHALOT_KERNEL_FILL) == 0);
  }
  cachalot_kernel_fill(&arguments, (uintptr_t)at, count, 1, 1);
  CHECK(launch(function, arguments.groups, 1, 1, arguments.threads, 1, 1, 0, stream, arguments.parameters, NULL) == 0);
}

/* Describes where the program is: the callback of cachalot_on_stack. */
static void where(void *userdata, cachalot_stack *stack, cachalot_action action) {
  (void)userdata;
  cachalot_stack_push(stack, action == CACHALOT_ACTION_ALLOC ? "make_batch" : "drop_batch", "loader.c", 12);
}

/* Frees a block, and lets the library find out that the block's own stream has finished. */
static void release(cachalot_allocator *allocator, void *block, cachalot_stream own) {
  NEEDED(cachalot_free(allocator, block));
  CHECK(cuda.stream_synchronize(own) == 0);
  NEEDED(cachalot_process_events(allocator, 0));
}

/* Checks that a kernel has touched `at`, that the context is broken, and that the explanation has all `parts`. */
static void expect_fault(cachalot_allocator *allocator, const char *at, const char *const *parts) {
  char text[2000];
  size_t length = 0;
  CHECK((uintptr_t)at == fault_address());
  NEEDED(cachalot_explain_address(allocator, at, text, sizeof text, &length));
  CHECK(length == strlen(text));
  for (; *parts != NULL; ++parts) {
    if (strstr(text, *parts) == NULL) {
      fprintf(stderr, "the explanation lacks \"%s\":\n%s\n", *parts, text);
      ++failures;
    }
  }
}

int main(int argc, char **argv) {
  const char *const which = argc > 2 ? argv[2] : "";
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  cachalot_block described = CACHALOT_BLOCK_INIT;
  cachalot_stream own = NULL, other = NULL;
  void *block = NULL, *neighbour = NULL;
  char named[100];
  options.config = argc > 1 ? argv[1] : "";
  /* Else each free would wait for the device, also for the work of the stream that nothing was said of. */
  options.flags = CACHALOT_STREAMS_REPORTED;
  NEEDED(cachalot_create(&options, &allocator));
  enter_driver(0);
  find_functions();
  deliver(1);
  CHECK(cuda.stream_create(&own, 1) == 0 && cuda.stream_create(&other, 1) == 0);
  NEEDED(cachalot_on_stack(allocator, where, NULL));
  NEEDED(cachalot_malloc(allocator, 0, bytes, own, &block));
  NEEDED(cachalot_malloc(allocator, 0, bytes, own, &neighbour));
  NEEDED(cachalot_get_block(allocator, block, &described));
  snprintf(named, sizeof named, "the block of %d bytes at %p,", bytes, block);

  if (strcmp(which, "after_free") == 0) {
    const char *const parts[] = {named, "16 bytes into", "were unmapped", "No other stream was said to use it.",
                                 "Allocated at:\n  make_batch (loader.c:12)", "Freed at:\n  drop_batch (loader.c:12)", NULL};
    write_at(block, bytes, own);
    release(allocator, block, own);
    write_at((char *)block + first, 64, own);
    CHECK(cuda.stream_synchronize(own) == 700);
    expect_fault(allocator, (char *)block + first, parts);
  } else if (strcmp(which, "overrun") == 0) {
    const char *const parts[] = {named, "bytes behind the end of", "The program holds the block.",
                                 "Allocated at:\n  make_batch (loader.c:12)", NULL};
    write_at(block, described.bytes + 8, own);
    CHECK(cuda.stream_synchronize(own) == 700);
    expect_fault(allocator, (char *)block + described.bytes, parts);
  } else if (strcmp(which, "missing_record") == 0) {
    const char *const parts[] = {named, "0 bytes into", "were unmapped", "No other stream was said to use it.", NULL};
    CHECK(hold((uintptr_t)other) == 0);
    write_at(block, bytes, other);
    release(allocator, block, own);
    CHECK(let_go((uintptr_t)other) == 0);
    CHECK(cuda.stream_synchronize(other) == 700);
    expect_fault(allocator, block, parts);
  } else {
    CHECK(hold((uintptr_t)other) == 0);
    write_at(block, bytes, other);
    NEEDED(cachalot_record_stream(allocator, block, other));
    release(allocator, block, own);
    CHECK(let_go((uintptr_t)other) == 0);
    CHECK(cuda.stream_synchronize(other) == 0);
    write_at(neighbour, bytes, own);
    release(allocator, neighbour, own);
    CHECK(fault_address() == 0);
    NEEDED(cachalot_stream_destroyed(allocator, 0, own));
    NEEDED(cachalot_stream_destroyed(allocator, 0, other));
    CHECK(cuda.stream_destroy(own) == 0 && cuda.stream_destroy(other) == 0);
    NEEDED(cachalot_destroy(allocator));
  }
  return failures != 0;
}
