/*
 * cachalot_kernels.h: cachalot's test kernels, for C and C++ hosts.
 *
 * The kernels write, check and occupy device memory, on a GPU and on the emulated driver of the tests. Two images
 * contain the kernels; kernels/build.sh makes both:
 *
 *   kernels.fatbin                  for GPUs: read the file into memory and pass it to cuModuleLoadData.
 *   libcachalot_host_kernels.so     for the emulated driver: pass cuModuleLoadData the text
 *                                   CACHALOT_KERNELS_EMULATED followed by the library's path.
 *
 * A launch is an argument block, filled by one of the functions below, and cuLaunchKernel:
 *
 *   cachalot_kernel_arguments a;
 *   cachalot_kernel_fill(&a, address, bytes, block, generation);
 *   cuLaunchKernel(function, a.groups, 1, 1, a.threads, 1, 1, 0, stream, a.parameters, NULL);
 *
 * where `function` is the function that cuModuleGetFunction returns for CACHALOT_KERNEL_FILL. If cuda.h is included
 * before this header, cachalot_kernel_launch(function, stream, &a) makes the launch. The driver copies the arguments
 * before it returns.
 *
 * Addresses are multiples of 8 and ranges are device memory that the kernel may use. Each function works on the
 * caller's own argument block, and may be called from any thread. C11, C17, C++17 and later.
 */
#ifndef CACHALOT_KERNELS_H
#define CACHALOT_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Prefix of an image for the emulated driver. The path of the shared library and a NUL follow. */
#define CACHALOT_KERNELS_EMULATED "CACHALOT-EMULATED "

#define CACHALOT_KERNEL_FILL "cachalot_fill"
#define CACHALOT_KERNEL_VERIFY "cachalot_verify"
#define CACHALOT_KERNEL_FILL_MANY "cachalot_fill_many"
#define CACHALOT_KERNEL_VERIFY_MANY "cachalot_verify_many"
#define CACHALOT_KERNEL_CHECKSUM "cachalot_checksum"
#define CACHALOT_KERNEL_HOLD "cachalot_hold"
#define CACHALOT_KERNEL_SCRIBBLE "cachalot_scribble"
#define CACHALOT_KERNEL_PROBE "cachalot_probe"
#define CACHALOT_KERNEL_COPY "cachalot_copy"
#define CACHALOT_KERNEL_ADD "cachalot_add"
#define CACHALOT_KERNEL_TRAP "cachalot_trap"

/* Findings of checks, written to device memory by the kernels. Set to {0, UINT64_MAX} before the first check. */
typedef struct cachalot_findings {
  uint64_t wrong_bytes;  /* number of bytes with a wrong value */
  uint64_t lowest_wrong; /* the lowest offset of a wrong byte; UINT64_MAX if no byte is wrong */
} cachalot_findings;

/* One block in a table for kernels over many blocks. */
typedef struct cachalot_kernel_row {
  uint64_t distance;   /* the block's address minus the table's address, modulo 2^64 */
  uint64_t bytes;      /* the block's length */
  uint64_t block;      /* the block of the pattern, see cachalot_kernel_pattern */
  uint64_t generation; /* the generation of the pattern */
  uint64_t launch;     /* 0 for the functions below */
} cachalot_kernel_row;

/* Arguments of cuLaunchKernel. `parameters` points into `values`: do not copy or move the block once filled. */
typedef struct cachalot_kernel_arguments {
  uint64_t values[5];
  void *parameters[5];
  unsigned groups;  /* gridDimX; the other two are 1 */
  unsigned threads; /* blockDimX; the other two are 1 */
} cachalot_kernel_arguments;

/* Fills a block for a kernel over `elements` elements. Used by the functions below. */
static inline void cachalot_kernel_prepare(cachalot_kernel_arguments *arguments, uint64_t elements, uint64_t a, uint64_t b,
                                           uint64_t c, uint64_t d, uint64_t e) {
  const uint64_t groups = elements / 256 + (elements % 256 != 0);
  int index;
  arguments->values[0] = a;
  arguments->values[1] = b;
  arguments->values[2] = c;
  arguments->values[3] = d;
  arguments->values[4] = e;
  for (index = 0; index < 5; ++index) {
    arguments->parameters[index] = &arguments->values[index];
  }
  arguments->groups = groups == 0 ? 1 : groups > 2048 ? 2048 : (unsigned)groups;
  arguments->threads = elements == 1 ? 1 : 256;
}

/* Writes the pattern of a block's life. */
static inline void cachalot_kernel_fill(cachalot_kernel_arguments *arguments, uint64_t address, uint64_t bytes,
                                        uint64_t block, uint64_t generation) {
  cachalot_kernel_prepare(arguments, bytes / 8, address, bytes, block, generation, 0);
}

/* Compares a range with the pattern of a block's life; adds to the cachalot_findings at `result`. */
static inline void cachalot_kernel_verify(cachalot_kernel_arguments *arguments, uint64_t address, uint64_t bytes,
                                          uint64_t block, uint64_t generation, uint64_t result) {
  cachalot_kernel_prepare(arguments, bytes / 8, address, bytes, block, generation, result);
}

/* Fills a block for a kernel with a group of threads for each row of a table. Used by the functions below. */
static inline void cachalot_kernel_prepare_many(cachalot_kernel_arguments *arguments, uint64_t table, uint64_t count,
                                                uint64_t result) {
  cachalot_kernel_prepare(arguments, count, table, count, result, 0, 0);
  arguments->groups = count == 0 ? 1 : count > 2048 ? 2048 : (unsigned)count;
  arguments->threads = 256;
}

/* Writes the patterns of `count` blocks, described by the cachalot_kernel_rows at `table` in device memory. */
static inline void cachalot_kernel_fill_many(cachalot_kernel_arguments *arguments, uint64_t table, uint64_t count) {
  cachalot_kernel_prepare_many(arguments, table, count, 0);
}

/* Compares the blocks of a table with their patterns; adds to the cachalot_findings at `result`. `lowest_wrong` is the
 * row of the first block with a wrong byte times 2^40, plus the lowest offset of a wrong byte within the block. */
static inline void cachalot_kernel_verify_many(cachalot_kernel_arguments *arguments, uint64_t table, uint64_t count,
                                               uint64_t result) {
  cachalot_kernel_prepare_many(arguments, table, count, result);
}

/* Adds a sum over all bytes to the uint64_t at `result`; the sum depends on the order of bytes, not of threads. */
static inline void cachalot_kernel_checksum(cachalot_kernel_arguments *arguments, uint64_t address, uint64_t bytes,
                                            uint64_t result) {
  cachalot_kernel_prepare(arguments, bytes / 8, address, bytes, result, 0, 0);
}

/* Occupies the stream for the given number of microseconds. */
static inline void cachalot_kernel_hold(cachalot_kernel_arguments *arguments, uint64_t microseconds) {
  cachalot_kernel_prepare(arguments, 1, microseconds, 0, 0, 0, 0);
}

/* Waits, then writes one value to every byte: a slow use of memory that may be freed before the write. */
static inline void cachalot_kernel_scribble(cachalot_kernel_arguments *arguments, uint64_t address, uint64_t bytes,
                                            uint8_t value, uint64_t microseconds) {
  cachalot_kernel_prepare(arguments, bytes, address, bytes, value, microseconds, 0);
}

/* Compares every byte with one value; adds to the cachalot_findings at `result`. If memory was filled with the value
 * when freed, the findings show any later write. */
static inline void cachalot_kernel_probe(cachalot_kernel_arguments *arguments, uint64_t address, uint64_t bytes,
                                         uint8_t value, uint64_t result) {
  cachalot_kernel_prepare(arguments, bytes / 8, address, bytes, value, result, 0);
}

/* Copies between ranges that do not overlap. */
static inline void cachalot_kernel_copy(cachalot_kernel_arguments *arguments, uint64_t destination, uint64_t source,
                                        uint64_t bytes) {
  cachalot_kernel_prepare(arguments, bytes / 8, destination, source, bytes, 0, 0);
}

/* Adds two vectors of `count` floats. */
static inline void cachalot_kernel_add(cachalot_kernel_arguments *arguments, uint64_t destination, uint64_t left,
                                       uint64_t right, uint64_t count) {
  cachalot_kernel_prepare(arguments, count, destination, left, right, count, 0);
}

/* Makes the driver lose the context: accesses an unmapped address (code 700), else executes a trap, after which the
 * emulated driver returns `code` from every call. */
static inline void cachalot_kernel_trap(cachalot_kernel_arguments *arguments, uint64_t code) {
  cachalot_kernel_prepare(arguments, 1, code, 0, 0, 0, 0);
}

/* Mixes the bits of `value`: every input bit changes about half of the output bits. */
static inline uint64_t cachalot_kernel_mix(uint64_t value) {
  value ^= value >> 30;
  value *= UINT64_C(0xbf58476d1ce4e5b9);
  value ^= value >> 27;
  value *= UINT64_C(0x94d049bb133111eb);
  return value ^ (value >> 31);
}

/* Returns the byte at `offset` of the pattern of a block's life, as written by `fill` and expected by `verify`. */
static inline uint8_t cachalot_kernel_pattern(uint64_t block, uint64_t generation, uint64_t offset) {
  const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
  const uint64_t seed = cachalot_kernel_mix(block + golden * (generation + 1));
  return (uint8_t)(((seed ^ offset / 8) * golden) >> (offset % 8 * 8));
}

#ifdef CUDA_VERSION
/* Launches a kernel in the order of a stream. Returns the result of cuLaunchKernel. */
static inline CUresult cachalot_kernel_launch(CUfunction function, CUstream stream, cachalot_kernel_arguments *arguments) {
  return cuLaunchKernel(function, arguments->groups, 1, 1, arguments->threads, 1, 1, 0, stream, arguments->parameters,
                        (void **)0);
}
#endif

#ifdef __cplusplus
}
#endif

#endif
