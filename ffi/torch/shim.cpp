/*
 * The part of the PyTorch plug-in that needs C++: it throws exceptions, and calls a std::function.
 * include/cachalot_torch.h says what each function does.
 *
 *   c++ -std=c++17 -O2 -fPIC -shared -fvisibility=hidden -I include ffi/torch/shim.cpp \
 *     -o libcachalot_torch.so libcachalot.so
 *
 * makes a library that throws std::runtime_error. For PyTorch's own exceptions, compile with the headers of the PyTorch
 * that will load it:
 *
 *   ... -DCACHALOT_WITH_TORCH -D_GLIBCXX_USE_CXX11_ABI=1 -isystem TORCH/include ... -L TORCH/lib -lc10
 */
#include "cachalot_torch.h"
#include "failure.hpp"

#include <exception>
#include <memory>
#include <string>
#include <utility>

#ifndef CACHALOT_WITH_TORCH
#include <stdexcept>
#endif

namespace {

using Filter = std::function<bool(cachalot_stream)>;

/* What a filter threw, as an exception of this build. A std::exception_ptr would tie the file to the libstdc++ of its
 * compiler: the symbols that GCC 11 and later use for a copy are in no older one. */
#ifdef CACHALOT_WITH_TORCH
using Thrown = c10::Error;
Thrown as_thrown(const std::string &text) {
  return {c10::SourceLocation{__func__, __FILE__, __LINE__}, text};
}
#else
using Thrown = std::runtime_error;
Thrown as_thrown(const std::string &text) {
  return Thrown(text);
}
#endif
Thrown caught() {
  try {
    throw;
  } catch (const Thrown &error) {
    return error;
  } catch (const std::exception &error) {
    return as_thrown(error.what());
  } catch (...) {
    return as_thrown("the filter of a pool threw something that is no std::exception");
  }
}

/* The exception that a filter threw in the middle of this thread's request: no exception may pass through the library, which is not
 * C++. A plain pointer, so that nothing has to run when a thread starts or ends. */
thread_local Thrown *thrown = nullptr;

/* Takes what a filter threw, and leaves nothing. */
std::unique_ptr<Thrown> take_thrown() {
  return std::unique_ptr<Thrown>(std::exchange(thrown, nullptr));
}

extern "C" int leads(void *userdata, cachalot_stream stream) {
  try {
    return (*static_cast<Filter *>(userdata))(stream) ? 1 : 0;
  } catch (...) {
    take_thrown();
    thrown = new Thrown(caught());
    return 0;
  }
}

extern "C" void let_go(void *userdata) {
  delete static_cast<Filter *>(userdata);
}

}  // namespace

void *cachalot_torch_alloc(size_t bytes, int device, cachalot_stream stream) {
  void *block = nullptr;
  if (thrown != nullptr) {
    take_thrown(); /* by a request that was not made here */
  }
  const cachalot_status status = cachalot_torch_allocate(bytes, device, stream, &block);
  if (thrown != nullptr) {
    /* The block may be of the wrong pool. */
    cachalot_torch_free(block, bytes, device, stream);
    throw Thrown(*take_thrown());
  }
  if (status != CACHALOT_OK) {
    fail(status);
  }
  return block;
}

void cachalot_torch_begin_pool(int device, std::pair<unsigned long long, unsigned long long> pool, Filter filter) {
  /* An empty std::function leads everything. */
  const bool empty = !filter;
  std::unique_ptr<Filter> owned(empty ? nullptr : new Filter(std::move(filter)));
  const cachalot_status status = cachalot_torch_begin_allocate_to_pool(
      device, {pool.first, pool.second}, empty ? nullptr : leads, empty ? nullptr : let_go, owned.release());
  if (status != CACHALOT_OK) {
    fail(status);
  }
}
