/*
 * Memory runs out: as the current allocator an exception tells so, with the report as its text; as a pool's allocator
 * NULL.
 *
 *   running_out SHIM torch|plain        which exceptions the shim was built with
 */
#include "torch.hpp"

#include <c10/util/Exception.h>

#include <stdexcept>

/* What a request ends in: the kind of exception, and its text. */
static std::pair<std::string, std::string> outcome(Pluggable &torch, size_t bytes, int device) {
  try {
    CHECK(torch.allocate(bytes, device, nullptr) != nullptr);
    return {"block", ""};
  } catch (const c10::OutOfMemoryError &error) {
    return {"c10::OutOfMemoryError", error.what()};
  } catch (const c10::Error &error) {
    return {"c10::Error", error.what()};
  } catch (const std::runtime_error &error) {
    return {"std::runtime_error", error.what()};
  }
}

static bool has(const std::string &text, const char *part) {
  return text.find(part) != std::string::npos;
}

int main(int, char **argv) {
  const bool with_torch = std::strcmp(argv[2], "torch") == 0;
  const std::string memory = with_torch ? "c10::OutOfMemoryError" : "std::runtime_error";
  const std::string other = with_torch ? "c10::Error" : "std::runtime_error";
  const Driver driver;
  driver.use(0);
  Pluggable torch(argv[1]);

  auto [kind, text] = outcome(torch, size_t{800} << 30, 0);
  CHECK(kind == memory);
  CHECK(has(text, "CUDA out of memory. Tried to allocate 800.00 GiB. GPU 0 has a total capacity of 1024.00 MiB"));
  CHECK(has(text, "The request of 800.00 GiB needs a block of 800.00 GiB"));
  CHECK(has(text, "The device would not give 800.00 GiB more."));
  std::tie(kind, text) = outcome(torch, size_t{1} << 61, 0);
  CHECK(kind == memory && has(text, "more than 1EB"));
  std::tie(kind, text) = outcome(torch, 1000, 7);
  CHECK(kind == other && has(text, "no device 7"));
  CHECK(outcome(torch, 1000, 0).first == "block");

  /* A limit is memory that is not there. */
  torch.set_memory_fraction(0.01, 0);
  std::tie(kind, text) = outcome(torch, 64 << 20, 0);
  CHECK(kind == memory && has(text, "10.24 MiB allowed"));
  torch.set_memory_fraction(1.0, 0);
  NEEDED(cachalot_torch_configure("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.01"));
  std::tie(kind, text) = outcome(torch, 64 << 20, 0);
  CHECK(kind == memory);
  NEEDED(cachalot_torch_configure("throw_on_cudamalloc_oom:False,per_process_memory_fraction:1"));
  CHECK(stat("num_ooms") == 2 && stat("num_alloc_retries") == 2);

  /* A callback reads the same words. */
  std::string told;
  cachalot_allocator *allocator = nullptr;
  NEEDED(cachalot_torch_allocator(&allocator));
  const auto keep = [](void *userdata, const cachalot_oom_report *report) {
    *static_cast<std::string *>(userdata) = report->text;
  };
  NEEDED(cachalot_on_out_of_memory(allocator, keep, &told));
  CHECK(outcome(torch, size_t{800} << 30, 0).second == told && has(told, "is allocated by PyTorch"));
  NEEDED(cachalot_on_out_of_memory(allocator, nullptr, nullptr));

  /* The same library for a torch.cuda.MemPool. */
  Pluggable pool(argv[1], "cachalot_torch_malloc");
  CHECK(pool.allocate(size_t{800} << 30, 0, nullptr) == nullptr);
  CHECK(has(cachalot_last_error(), "Tried to allocate 800.00 GiB"));
  void *segment = pool.allocate(20 << 20, 0, nullptr);
  CHECK(segment != nullptr);
  pool.free(segment);

  /* What filters throw comes out of the request that asked them, which holds nothing then. */
  const int64_t before = stat("allocation.all.current");
  torch.begin_allocate_to_pool(0, {1, 0}, [](cudaStream_t) -> bool { throw std::runtime_error("the filter's own"); });
  std::tie(kind, text) = outcome(torch, 1000, 0);
  CHECK(kind == other && text == "the filter's own" && stat("allocation.all.current") == before);
  torch.end_allocate_to_pool(0, {1, 0});
  torch.release_pool(0, {1, 0});
  CHECK(outcome(torch, 1000, 0).first == "block");
  try {
    torch.begin_allocate_to_pool(0, {0, 0}, nullptr);
    CHECK(!"the default pool is no private one");
  } catch (const std::exception &error) {
    CHECK(has(error.what(), "default pool"));
  }
  return failures != 0;
}
