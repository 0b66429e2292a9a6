/*
 * Memory runs out, twice in the process, and for a forked child, which has no recorder. Prints the texts of the failures.
 *
 *   recorder SHIM
 */
#include "torch.hpp"

#include <sys/wait.h>
#include <unistd.h>

/* Fails to allocate more than the device has, and prints why. */
static void run_out(Pluggable &torch) {
  try {
    torch.allocate(size_t{800} << 30, 0, nullptr);
    CHECK(!"the device has less memory");
  } catch (const std::exception &error) {
    std::printf("%s\n", error.what());
    std::fflush(stdout);
  }
}

int main(int, char **argv) {
  const Driver driver;
  driver.use(0);
  Pluggable torch(argv[1]);
  void *block = torch.allocate(1000, 0, nullptr);
  run_out(torch);
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    failures = 0;
    run_out(torch);
    _exit(failures);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  run_out(torch);
  torch.free(block);
  return failures == 0 ? 0 : 1;
}
