// Kernels of cachalot's tests and examples: one source for devices and for the host.
//
// nvcc compiles this source to device kernels (kernels.cu). A C++ compiler compiles the same bodies
// to host functions (host_kernels.cpp), which the emulated driver of the tests runs in the order of
// its streams. Every parameter has 64 bits, because the emulated driver copies parameters without
// knowing their types. Needs C++17, and GCC or Clang on the host.

#ifndef CACHALOT_KERNELS_KERNELS_H
#define CACHALOT_KERNELS_KERNELS_H

#include <cstdint>

#if defined(__CUDACC__)
#define CACHALOT_BODY static __device__ __forceinline__
#else
#include <time.h>
#define CACHALOT_BODY static inline
#endif

namespace cachalot {

using u64 = std::uint64_t;

// Elements handled by one thread: `first`, then every `step`th element. The host is a single thread
// that handles all.
struct Share {
  u64 first, step;
};

#if defined(__CUDACC__)

CACHALOT_BODY Share share() {
  return {u64(blockIdx.x) * blockDim.x + threadIdx.x, u64(gridDim.x) * blockDim.x};
}
CACHALOT_BODY Share share_of_blocks() { return {blockIdx.x, gridDim.x}; }
CACHALOT_BODY Share share_of_words() {
  return {u64(blockIdx.y) * blockDim.x + threadIdx.x, u64(gridDim.y) * blockDim.x};
}
CACHALOT_BODY void add_to(u64* word, u64 value) { atomicAdd(reinterpret_cast<unsigned long long*>(word), value); }
CACHALOT_BODY void lower_to(u64* word, u64 value) { atomicMin(reinterpret_cast<unsigned long long*>(word), value); }
CACHALOT_BODY bool is_first(u64* flag) { return atomicExch(reinterpret_cast<unsigned long long*>(flag), 1) == 0; }
CACHALOT_BODY u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
CACHALOT_BODY void rest() { __nanosleep(200); }

#else

CACHALOT_BODY Share share_of_blocks() { return {0, 1}; }
CACHALOT_BODY Share share_of_words() { return {0, 1}; }
CACHALOT_BODY void add_to(u64* word, u64 value) { __atomic_fetch_add(word, value, __ATOMIC_RELAXED); }
CACHALOT_BODY void lower_to(u64* word, u64 value) {
  u64 seen = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (value < seen && !__atomic_compare_exchange_n(word, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
CACHALOT_BODY bool is_first(u64* flag) { return __atomic_exchange_n(flag, u64(1), __ATOMIC_RELAXED) == 0; }
CACHALOT_BODY u64 nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return u64(now.tv_sec) * 1000000000u + u64(now.tv_nsec);
}
CACHALOT_BODY void rest() {
  const timespec briefly = {0, 10000};
  nanosleep(&briefly, nullptr);
}

#endif

// Mixes the bits of `value`: every input bit changes about half of the output bits (the finaliser
// of SplitMix64).
CACHALOT_BODY u64 mix(u64 value) {
  value ^= value >> 30;
  value *= 0xbf58476d1ce4e5b9u;
  value ^= value >> 27;
  value *= 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// The pattern of a block's life: word i, as eight little-endian bytes, is the product below.
// Another block, generation or word index gives another value.
CACHALOT_BODY u64 seed(u64 block, u64 generation) { return mix(block + 0x9e3779b97f4a7c15u * (generation + 1)); }
CACHALOT_BODY u64 pattern(u64 seed, u64 word) { return (seed ^ word) * 0x9e3779b97f4a7c15u; }

// Findings of a check so far: number of wrong bytes, and the lowest offset of a wrong byte.
struct Found {
  u64 wrong, lowest;
};

// Compares `count` (at most 8) bytes of two words. The words are `offset` bytes into the block.
CACHALOT_BODY void compare(Found& found, u64 expected, u64 actual, u64 offset, u64 count) {
  for (u64 byte = 0, different = expected ^ actual; different != 0 && byte < count; ++byte, different >>= 8) {
    if ((different & 0xff) != 0) {
      found.wrong += 1;
      found.lowest = offset + byte < found.lowest ? offset + byte : found.lowest;
    }
  }
}

// Adds one thread's findings to the block's result: result[0] wrong bytes, result[1] lowest wrong
// offset.
CACHALOT_BODY void report(const Found& found, u64 result) {
  if (found.wrong != 0) {
    add_to(reinterpret_cast<u64*>(result), found.wrong);
    lower_to(reinterpret_cast<u64*>(result) + 1, found.lowest);
  }
}

// Loads the `count` bytes after the last whole word, as the low bytes of a word.
CACHALOT_BODY u64 load_tail(const unsigned char* at, u64 count) {
  u64 word = 0;
  for (u64 byte = 0; byte < count; ++byte) {
    word |= u64(at[byte]) << (8 * byte);
  }
  return word;
}

CACHALOT_BODY void store_tail(unsigned char* at, u64 word, u64 count) {
  for (u64 byte = 0; byte < count; ++byte) {
    at[byte] = static_cast<unsigned char>(word >> (8 * byte));
  }
}

CACHALOT_BODY void wait(u64 microseconds) {
  const u64 begin = nanoseconds();
  while (nanoseconds() - begin < microseconds * 1000) {
    rest();
  }
}

// Writes the pattern of (block, generation). The address is a multiple of 8, in all functions of
// this file.
CACHALOT_BODY void fill(Share share, u64 address, u64 bytes, u64 block, u64 generation) {
  const u64 key = seed(block, generation), words = bytes / 8;
  u64* at = reinterpret_cast<u64*>(address);
  for (u64 word = share.first; word < words; word += share.step) {
    at[word] = pattern(key, word);
  }
  if (share.first == 0) {
    store_tail(reinterpret_cast<unsigned char*>(at + words), pattern(key, words), bytes % 8);
  }
}

// Compares with the pattern of (block, generation).
CACHALOT_BODY Found differences(Share share, u64 address, u64 bytes, u64 block, u64 generation) {
  const u64 key = seed(block, generation), words = bytes / 8;
  const u64* at = reinterpret_cast<const u64*>(address);
  Found found = {0, ~u64(0)};
  for (u64 word = share.first; word < words; word += share.step) {
    compare(found, pattern(key, word), at[word], word * 8, 8);
  }
  if (share.first == 0) {
    const u64 tail = load_tail(reinterpret_cast<const unsigned char*>(at + words), bytes % 8);
    compare(found, pattern(key, words), tail, words * 8, bytes % 8);
  }
  return found;
}

// Compares with the pattern of (block, generation), and reports the findings.
CACHALOT_BODY void verify(Share share, u64 address, u64 bytes, u64 block, u64 generation, u64 result) {
  report(differences(share, address, bytes, block, generation), result);
}

// One row of a table of blocks. The distance from the table identifies the block: the emulated
// driver translates the table's address to the device's view, and the distance then leads to the
// device's view of the block. `launch` is the number of the launch that the row was written for: a kernel that reads another
// one has read an older table, or a later one.
struct Row {
  u64 distance, bytes, block, generation, launch;
};

// The values that one thread has read and compared: the row as in the table, the index of the first wrong word, and the word that was
// there. For a row of another launch, `word` is the number of the kernel's launch.
struct Evidence {
  u64 is_taken, block, generation, word, actual, launch;
};

// Leaves the Evidence of the first thread that calls this, unless `evidence` is 0.
CACHALOT_BODY void testify(u64 evidence, const Row& it, u64 word, u64 actual) {
  Evidence* seen = reinterpret_cast<Evidence*>(evidence);
  if (seen != nullptr && is_first(&seen->is_taken)) {
    *seen = {1, it.block, it.generation, word, actual, it.launch};
  }
}

// Writes the pattern of every block of a table, with a column of groups per block. Leaves out rows of other launches, and
// the Evidence of one at `evidence`, unless that is 0.
CACHALOT_BODY void fill_many(Share, u64 table, u64 count, u64 launch, u64 evidence) {
  const Row* rows = reinterpret_cast<const Row*>(table);
  const Share blocks = share_of_blocks();
  for (u64 row = blocks.first; row < count; row += blocks.step) {
    const Row it = rows[row];
    if (it.launch == launch) {
      fill(share_of_words(), table + it.distance, it.bytes, it.block, it.generation);
    } else {
      testify(evidence, it, launch, 0);
    }
  }
}

// Compares every block of a table with its pattern. The reported lowest wrong offset is the row
// times 2^40, plus the offset within the row's block. A row of another launch counts as a wrong byte at its start. The
// first thread with a wrong byte leaves the Evidence at `evidence`, unless that is 0.
CACHALOT_BODY void verify_many(Share, u64 table, u64 count, u64 result, u64 launch, u64 evidence) {
  const Row* rows = reinterpret_cast<const Row*>(table);
  const Share blocks = share_of_blocks();
  for (u64 row = blocks.first; row < count; row += blocks.step) {
    const Row it = rows[row];
    Found found = {1, 0};
    if (it.launch != launch) {
      testify(evidence, it, launch, 0);
    } else {
      found = differences(share_of_words(), table + it.distance, it.bytes, it.block, it.generation);
      if (found.wrong != 0) {
        const u64 word = found.lowest / 8, left = it.bytes - word * 8;
        const unsigned char* at = reinterpret_cast<const unsigned char*>(table + it.distance) + word * 8;
        testify(evidence, it, word, load_tail(at, left < 8 ? left : 8));
      }
    }
    found.lowest += row << 40;
    report(found, result);
  }
}

// Adds a sum over all words. Each word is mixed with its index, so the sum depends on the order of
// words, not of threads.
CACHALOT_BODY void checksum(Share share, u64 address, u64 bytes, u64 result) {
  const u64 words = bytes / 8;
  const u64* at = reinterpret_cast<const u64*>(address);
  u64 sum = 0;
  for (u64 word = share.first; word < words; word += share.step) {
    sum += mix(at[word] + mix(word + 1));
  }
  if (share.first == 0 && bytes % 8 != 0) {
    const u64 tail = load_tail(reinterpret_cast<const unsigned char*>(at + words), bytes % 8);
    sum += mix(tail + mix(words + 1)) + bytes % 8;
  }
  add_to(reinterpret_cast<u64*>(result), sum);
}

// Occupies the stream.
CACHALOT_BODY void hold(Share share, u64 microseconds) {
  if (share.first == 0) {
    wait(microseconds);
  }
}

// Waits, then writes one value to every byte. Simulates a slow use of memory that may be freed
// before the write.
CACHALOT_BODY void scribble(Share share, u64 address, u64 bytes, u64 value, u64 microseconds) {
  wait(microseconds);
  unsigned char* at = reinterpret_cast<unsigned char*>(address);
  for (u64 byte = share.first; byte < bytes; byte += share.step) {
    at[byte] = static_cast<unsigned char>(value);
  }
}

// Compares every byte with one value. Finds writes since the memory was filled with the value.
CACHALOT_BODY void probe(Share share, u64 address, u64 bytes, u64 value, u64 result) {
  const u64 words = bytes / 8, expected = (value & 0xff) * 0x0101010101010101u;
  const u64* at = reinterpret_cast<const u64*>(address);
  Found found = {0, ~u64(0)};
  for (u64 word = share.first; word < words; word += share.step) {
    compare(found, expected, at[word], word * 8, 8);
  }
  if (share.first == 0) {
    const u64 tail = load_tail(reinterpret_cast<const unsigned char*>(at + words), bytes % 8);
    compare(found, expected, tail, words * 8, bytes % 8);
  }
  report(found, result);
}

// Copies. The ranges do not overlap.
CACHALOT_BODY void copy(Share share, u64 destination, u64 source, u64 bytes) {
  const u64 words = bytes / 8;
  u64* to = reinterpret_cast<u64*>(destination);
  const u64* from = reinterpret_cast<const u64*>(source);
  for (u64 word = share.first; word < words; word += share.step) {
    to[word] = from[word];
  }
  if (share.first == 0) {
    const u64 tail = load_tail(reinterpret_cast<const unsigned char*>(from + words), bytes % 8);
    store_tail(reinterpret_cast<unsigned char*>(to + words), tail, bytes % 8);
  }
}

// Adds two vectors of floats.
CACHALOT_BODY void add(Share share, u64 destination, u64 left, u64 right, u64 count) {
  float* to = reinterpret_cast<float*>(destination);
  const float *a = reinterpret_cast<const float*>(left), *b = reinterpret_cast<const float*>(right);
  for (u64 element = share.first; element < count; element += share.step) {
    to[element] = a[element] + b[element];
  }
}

#if defined(__CUDACC__)

// Makes the driver lose the context: accesses an unmapped address (code 700), or executes a trap.
CACHALOT_BODY void trap(Share, u64 code) {
  if (code == 700) {
    *reinterpret_cast<volatile u64*>(16) = code;
  } else {
    __trap();
  }
}

#else

// Function of the emulated driver to call when a kernel loses the context. The driver sets the
// pointer after loading.
static void (*raise_error)(unsigned code) = nullptr;

CACHALOT_BODY void trap(Share, u64 code) {
  if (raise_error != nullptr) {
    raise_error(static_cast<unsigned>(code));
  }
}

#endif

}  // namespace cachalot

// The kernels, by number of parameters.
#if defined(__CUDACC__)

#define CACHALOT_KERNEL_1(name, a) \
  extern "C" __global__ void cachalot_##name(cachalot::u64 a) { cachalot::name(cachalot::share(), a); }
#define CACHALOT_KERNEL_2(name, a, b)                                                                 \
  extern "C" __global__ void cachalot_##name(cachalot::u64 a, cachalot::u64 b) {                      \
    cachalot::name(cachalot::share(), a, b);                                                          \
  }
#define CACHALOT_KERNEL_3(name, a, b, c)                                                              \
  extern "C" __global__ void cachalot_##name(cachalot::u64 a, cachalot::u64 b, cachalot::u64 c) {     \
    cachalot::name(cachalot::share(), a, b, c);                                                       \
  }
#define CACHALOT_KERNEL_4(name, a, b, c, d)                                                           \
  extern "C" __global__ void cachalot_##name(cachalot::u64 a, cachalot::u64 b, cachalot::u64 c,       \
                                             cachalot::u64 d) {                                       \
    cachalot::name(cachalot::share(), a, b, c, d);                                                    \
  }
#define CACHALOT_KERNEL_5(name, a, b, c, d, e)                                                        \
  extern "C" __global__ void cachalot_##name(cachalot::u64 a, cachalot::u64 b, cachalot::u64 c,       \
                                             cachalot::u64 d, cachalot::u64 e) {                      \
    cachalot::name(cachalot::share(), a, b, c, d, e);                                                 \
  }

#else

// A host function receives pointers to the parameters. A constant next to the function holds the
// number of parameters.
#define CACHALOT_HOST_KERNEL(name, count, ...)                                              \
  extern "C" {                                                                              \
  extern const unsigned cachalot_##name##_params;                                           \
  const unsigned cachalot_##name##_params = count;                                          \
  void cachalot_##name(void** parameters, unsigned /*grid*/, unsigned /*block*/);           \
  void cachalot_##name(void** parameters, unsigned /*grid*/, unsigned /*block*/) {          \
    const auto at = [&](int index) { return *static_cast<cachalot::u64*>(parameters[index]); }; \
    cachalot::name(cachalot::Share{0, 1}, __VA_ARGS__);                                     \
  }                                                                                         \
  }
#define CACHALOT_KERNEL_1(name, a) CACHALOT_HOST_KERNEL(name, 1, at(0))
#define CACHALOT_KERNEL_2(name, a, b) CACHALOT_HOST_KERNEL(name, 2, at(0), at(1))
#define CACHALOT_KERNEL_3(name, a, b, c) CACHALOT_HOST_KERNEL(name, 3, at(0), at(1), at(2))
#define CACHALOT_KERNEL_4(name, a, b, c, d) CACHALOT_HOST_KERNEL(name, 4, at(0), at(1), at(2), at(3))
#define CACHALOT_KERNEL_5(name, a, b, c, d, e) CACHALOT_HOST_KERNEL(name, 5, at(0), at(1), at(2), at(3), at(4))

extern "C" void cachalot_host_set_raise(void (*raise)(unsigned code));
extern "C" void cachalot_host_set_raise(void (*raise)(unsigned code)) { cachalot::raise_error = raise; }

#endif

CACHALOT_KERNEL_4(fill, address, bytes, block, generation)
CACHALOT_KERNEL_5(verify, address, bytes, block, generation, result)
CACHALOT_KERNEL_4(fill_many, table, count, launch, evidence)
CACHALOT_KERNEL_5(verify_many, table, count, result, launch, evidence)
CACHALOT_KERNEL_3(checksum, address, bytes, result)
CACHALOT_KERNEL_1(hold, microseconds)
CACHALOT_KERNEL_4(scribble, address, bytes, value, microseconds)
CACHALOT_KERNEL_4(probe, address, bytes, value, result)
CACHALOT_KERNEL_3(copy, destination, source, bytes)
CACHALOT_KERNEL_4(add, destination, left, right, count)
CACHALOT_KERNEL_1(trap, code)

#endif
