// __global__ functions as functions of the host, for the emulated CUDA runtime.
//
// Include the header before the kernels, and name each kernel once after the kernels. nvcc ignores
// the names. A C++ compiler compiles the file into a library with the kernels for the host:
//
//   nvcc -cudart shared program.cu -o program
//   c++ -std=c++17 -x c++ -shared -fPIC -I CUDA/include program.cu -o kernels.so
//   CACHALOT_HOST_KERNELS=kernels.so LD_LIBRARY_PATH=... ./program
//
// Code for nvcc alone (<<<>>>) must be between #ifdef __CUDACC__ and #endif. A kernel has external
// linkage and trivially copyable parameters. A pointer parameter may point to device memory. A
// pointer inside a structure or inside device memory may not, because the emulated driver cannot
// find the pointer.
//
// The blocks of a launch run one after another, on the thread of their stream. The threads of a
// block take turns: a thread runs until its end or until __syncthreads(). Warps, dynamic shared
// memory and clusters are missing: a kernel that uses them does not compile.
#ifndef CACHALOT_HOST_KERNELS_H
#define CACHALOT_HOST_KERNELS_H

#if defined(__CUDACC__)

#define CACHALOT_HOST_KERNEL(...) static_assert(true, "")

#else

#include <vector_functions.h>
#include <vector_types.h>

#include <dlfcn.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

// CUDA's keywords. The program has a function with each kernel's name, which starts the kernel.
// Protected visibility keeps the program's function from taking the place of the kernel.
#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#define __global__ __attribute__((visibility("protected")))
#define __device__
#define __host__
#define __constant__
// A stream has one thread, and the thread runs one block at a time.
#define __shared__ static thread_local
#ifndef __forceinline__
#define __forceinline__ inline
#endif

// A kernel in the form for the emulated driver, equal to the structure in
// emulated-driver/src/calls/module.rs.
extern "C" struct cachalot_host_kernel {
  const char* name;
  void (*run)(void** arguments, const unsigned* sizes);
  unsigned count;
  const unsigned* argument_bytes;
  std::uint64_t addresses;
  const cachalot_host_kernel* next;
};

namespace cachalot {
namespace host __attribute__((visibility("hidden"))) {

// Position of the running thread of a kernel.
struct Place {
  uint3 thread, block;
  dim3 threads, blocks;
};
inline thread_local Place place;

// A stack for the threads of a block, which run one after another. A thread that waits at a barrier
// keeps the stack.
class Fiber {
 public:
  Fiber() : stack_(new char[bytes]) {
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack_.get();
    own_.uc_stack.ss_size = bytes;
    own_.uc_link = nullptr;
    makecontext(&own_, &Fiber::serve, 0);
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs `body` for a thread until the end or a wait. Returns whether the thread ended.
  template <class Body>
  bool start(Body& body, const Place& at) {
    body_ = &body;
    call_ = [](void* it) { (*static_cast<Body*>(it))(); };
    at_ = at;
    return resume();
  }

  bool resume() {
    place = at_;
    ended_ = false;
    running() = this;
    swapcontext(&outside_, &own_);
    running() = nullptr;
    return ended_;
  }

  // Waits for the other threads of the block.
  void wait() { swapcontext(&own_, &outside_); }

  static Fiber*& running() {
    static thread_local Fiber* fiber = nullptr;
    return fiber;
  }

 private:
  static constexpr std::size_t bytes = 64 << 10;

  static void serve() {
    Fiber* const self = running();
    for (;;) {
      self->call_(self->body_);
      self->ended_ = true;
      self->wait();
    }
  }

  std::unique_ptr<char[]> stack_;
  ucontext_t own_, outside_;
  void* body_ = nullptr;
  void (*call_)(void*) = nullptr;
  Place at_{};
  bool ended_ = false;
};

// The blocks of a launch.
template <class Body>
void run_grid(const unsigned* sizes, Body body) {
  std::vector<std::unique_ptr<Fiber>> idle, waiting, again;
  Place at{};
  at.blocks = dim3(sizes[0], sizes[1], sizes[2]);
  at.threads = dim3(sizes[3], sizes[4], sizes[5]);
  const auto settle = [&](std::unique_ptr<Fiber> fiber, bool ended, std::vector<std::unique_ptr<Fiber>>& others) {
    (ended ? idle : others).push_back(std::move(fiber));
  };
  const auto run_block = [&] {
    for (at.thread.z = 0; at.thread.z < at.threads.z; ++at.thread.z)
      for (at.thread.y = 0; at.thread.y < at.threads.y; ++at.thread.y)
        for (at.thread.x = 0; at.thread.x < at.threads.x; ++at.thread.x) {
          if (idle.empty()) idle.push_back(std::make_unique<Fiber>());
          std::unique_ptr<Fiber> fiber = std::move(idle.back());
          idle.pop_back();
          const bool ended = fiber->start(body, at);
          settle(std::move(fiber), ended, waiting);
        }
    while (!waiting.empty()) {
      for (std::unique_ptr<Fiber>& fiber : waiting) {
        const bool ended = fiber->resume();
        settle(std::move(fiber), ended, again);
      }
      waiting.clear();
      waiting.swap(again);
    }
  };
  for (at.block.z = 0; at.block.z < at.blocks.z; ++at.block.z)
    for (at.block.y = 0; at.block.y < at.blocks.y; ++at.block.y)
      for (at.block.x = 0; at.block.x < at.blocks.x; ++at.block.x) run_block();
}

// The kernels of the library.
inline const cachalot_host_kernel*& kernels() {
  static const cachalot_host_kernel* first = nullptr;
  return first;
}

template <auto Kernel>
struct Entry;

// Calls a kernel with parameters of the given types.
template <class... Parameters, void (*Kernel)(Parameters...)>
struct Entry<Kernel> {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...), "a kernel's parameters are copied byte by byte");

  static constexpr unsigned bytes[] = {sizeof(Parameters)..., 0};

  static constexpr std::uint64_t addresses() {
    std::uint64_t mask = 0, bit = 1;
    ((mask |= std::is_pointer_v<Parameters> ? bit : 0, bit <<= 1), ...);
    return mask;
  }

  template <std::size_t... Index>
  static void call(void** arguments, const unsigned* sizes, std::index_sequence<Index...>) {
    (void)arguments;
    run_grid(sizes, [=] { Kernel(*static_cast<Parameters*>(arguments[Index])...); });
  }

  static void run(void** arguments, const unsigned* sizes) {
    call(arguments, sizes, std::index_sequence_for<Parameters...>());
  }
};

// Registers a kernel under the mangled name, which nvcc's code also uses.
template <auto Kernel>
struct Registration {
  Registration() {
    const auto address = reinterpret_cast<void*>(Kernel);
    Dl_info found;
    if (dladdr(address, &found) == 0 || found.dli_saddr != address) {
      std::fprintf(stderr, "CACHALOT_HOST_KERNEL: a kernel needs external linkage, and a shared library\n");
      std::abort();
    }
    using Its = Entry<Kernel>;
    static const cachalot_host_kernel entry = {found.dli_sname, &Its::run,        sizeof Its::bytes / sizeof *Its::bytes - 1,
                                               Its::bytes,      Its::addresses(), kernels()};
    kernels() = &entry;
  }
};

// Changes a value atomically, for every type of 4 or 8 bytes.
template <class T, class Change>
T change(T* at, Change next) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  static_assert(sizeof(T) == sizeof(Bits), "4 or 8 bytes");
  Bits* const word = reinterpret_cast<Bits*>(at);
  Bits seen = __atomic_load_n(word, __ATOMIC_RELAXED), wanted;
  T before;
  do {
    std::memcpy(&before, &seen, sizeof before);
    const T after = next(before);
    std::memcpy(&wanted, &after, sizeof after);
  } while (!__atomic_compare_exchange_n(word, &seen, wanted, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return before;
}

}  // namespace host
}  // namespace cachalot

#define threadIdx (::cachalot::host::place.thread)
#define blockIdx (::cachalot::host::place.block)
#define blockDim (::cachalot::host::place.threads)
#define gridDim (::cachalot::host::place.blocks)

inline void __syncthreads() { ::cachalot::host::Fiber::running()->wait(); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class T>
T atomicAdd(T* at, std::common_type_t<T> value) {
  return ::cachalot::host::change(at, [=](T before) { return T(before + value); });
}
template <class T>
T atomicSub(T* at, std::common_type_t<T> value) {
  return ::cachalot::host::change(at, [=](T before) { return T(before - value); });
}
template <class T>
T atomicMin(T* at, std::common_type_t<T> value) {
  return ::cachalot::host::change(at, [=](T before) { return value < before ? value : before; });
}
template <class T>
T atomicMax(T* at, std::common_type_t<T> value) {
  return ::cachalot::host::change(at, [=](T before) { return before < value ? value : before; });
}
template <class T>
T atomicExch(T* at, std::common_type_t<T> value) {
  return ::cachalot::host::change(at, [=](T) { return value; });
}
template <class T>
T atomicCAS(T* at, std::common_type_t<T> expected, std::common_type_t<T> value) {
  return ::cachalot::host::change(at, [=](T before) { return before == expected ? value : before; });
}

// Finds a kernel of the library for the emulated driver.
extern "C" __attribute__((visibility("default"), used)) inline const cachalot_host_kernel* cachalot_host_kernel_named(
    const char* name) {
  const cachalot_host_kernel* kernel = ::cachalot::host::kernels();
  while (kernel != nullptr && std::strcmp(kernel->name, name) != 0) kernel = kernel->next;
  return kernel;
}

#define CACHALOT_HOST_KERNEL_JOIN(left, right) left##right
#define CACHALOT_HOST_KERNEL_NAME(number) CACHALOT_HOST_KERNEL_JOIN(cachalot_host_kernel_, number)
// Names a kernel. The name of a template includes the arguments:
// CACHALOT_HOST_KERNEL(scale<float>);
#define CACHALOT_HOST_KERNEL(...)                                    \
  static const ::cachalot::host::Registration<&__VA_ARGS__> CACHALOT_HOST_KERNEL_NAME(__COUNTER__)

#endif
#endif
