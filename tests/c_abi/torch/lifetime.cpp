/*
 * Forked children, as of a DataLoader with workers, and the end of the process, with blocks that nobody freed and some
 * that are freed by destructors when the driver may be gone.
 */
#include "torch.hpp"

#include <sys/wait.h>
#include <unistd.h>

/* Freed when static objects are destroyed, as tensors in global variables are. */
static struct Late {
  Pluggable *torch = nullptr;
  void *block = nullptr;
  ~Late() {
    if (torch != nullptr) {
      torch->free(block);
      torch->record_stream(block, nullptr);
      torch->empty_cache();
    }
  }
} late;

static int child(Pluggable &torch, void *block, cudaStream_t stream) {
  void *out = nullptr;
  failures = 0;
  alarm(30);
  CHECK(cachalot_torch_allocate(1000, 0, stream, &out) == CACHALOT_ERROR_FORKED && out == nullptr);
  CHECK(cachalot_torch_allocator(reinterpret_cast<cachalot_allocator **>(&out)) == CACHALOT_ERROR_FORKED);
  CHECK(cachalot_torch_peek(reinterpret_cast<cachalot_allocator **>(&out)) == CACHALOT_ERROR_FORKED);
  CHECK(cachalot_torch_configure("max_split_size_mb:32") == CACHALOT_ERROR_FORKED);
  try {
    torch.allocate(1000, 0, stream);
    CHECK(!"a child has no allocator");
  } catch (const std::exception &error) {
    CHECK(std::strstr(error.what(), "fork") != nullptr);
  }
  /* These do nothing, and say nothing. */
  torch.record_stream(block, nullptr);
  torch.free(block);
  torch.empty_cache();
  torch.init(1);
  size_t bytes = 7;
  CHECK(torch.base_allocation(block, &bytes) == block && bytes == 7);
  torch.end_allocate_to_pool(0, {1, 0});
  torch.release_pool(0, {1, 0});
  return failures;
}

int main(int argc, char **argv) {
  /* Never destroyed, as PyTorch's is not before what it has allocated. */
  static Pluggable *const made = new Pluggable(argv[1]);
  Pluggable &torch = *made;
  /* A child of a process that has not begun is on its own. */
  pid_t id = fork();
  if (id == 0) {
    const Driver driver;
    driver.use(0);
    CHECK(torch.allocate(1000, 0, nullptr) != nullptr);
    _exit(failures);
  }
  int status = -1;
  CHECK(waitpid(id, &status, 0) == id && WIFEXITED(status) && WEXITSTATUS(status) == 0);

  const Driver driver;
  driver.use(0);
  const cudaStream_t stream = driver.stream(), side = driver.stream();
  void *block = torch.allocate(1000, 0, stream);
  id = fork();
  if (id == 0) {
    _exit(child(torch, block, stream));
  }
  CHECK(waitpid(id, &status, 0) == id && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  torch.free(block);
  CHECK(stat("allocation.all.current") == 0);

  /* One is left, and one may be freed behind the end of main, with a stream to wait for. */
  torch.allocate(5 << 20, 0, stream);
  late.block = torch.allocate(1000, 0, stream);
  torch.record_stream(late.block, side);
  late.torch = argc > 2 ? &torch : nullptr;
  return failures != 0;
}
