/*
 * A memory allocator for PyTorch in thirty lines, over cachalot.h. Two functions are all that PyTorch asks for:
 *
 *   c++ -std=c++17 -shared -fPIC torch_minimal.cpp $(pkg-config --cflags --libs cachalot) -o torch_minimal.so
 *
 *   mine = torch.cuda.memory.CUDAPluggableAllocator("./torch_minimal.so", "my_malloc", "my_free")
 *   torch.cuda.memory.change_current_allocator(mine)  # before anything else uses the GPU
 *
 * What it leaves out, the plug-in of cachalot itself has (cachalot_torch.h): record_stream, graphs, empty_cache,
 * limits, and exceptions that are torch.OutOfMemoryError.
 */
#include <cachalot.h>

#include <stdexcept>

/* One allocator for the process, made by the first request. It owns every device that CUDA has, in the contexts that
 * PyTorch uses, and is never destroyed: tensors may outlive everything else. */
static cachalot_allocator *allocator() {
  static cachalot_allocator *const made = [] {
    cachalot_options options = CACHALOT_OPTIONS_INIT;
    options.flags = CACHALOT_OPEN_LATER; /* no context on a GPU that PyTorch does not use */
    options.config = "policy:bfc";       /* any settings, in the syntax of PYTORCH_CUDA_ALLOC_CONF */
    cachalot_allocator *out = nullptr;
    if (cachalot_create(&options, &out) != CACHALOT_OK) throw std::runtime_error(cachalot_last_error());
    return out;
  }();
  return made;
}

/* PyTorch says on which stream the block is used first. On that stream it may be used at once, whoever had it before:
 * what the stream had to do for them comes earlier. NULL would be a tensor without memory, so failing means to throw.
 */
extern "C" void *my_malloc(size_t bytes, int device, cachalot_stream stream) {
  void *block = nullptr;
  if (cachalot_malloc(allocator(), device, bytes, stream, &block) != CACHALOT_OK)
    throw std::runtime_error(cachalot_last_error());
  return block;
}

/* The block goes back when its last use on its stream has been queued, not when it is done. The size is known to
 * cachalot too, and could be left out; given, it is checked. */
extern "C" void my_free(void *block, size_t bytes, int, cachalot_stream) {
  if (block != nullptr) (void)cachalot_free_sized(allocator(), block, bytes);
}
