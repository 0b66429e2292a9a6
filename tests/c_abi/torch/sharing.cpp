/*
 * A block of pages in two processes, as the whole allocator shares it: one handle for a block, descriptors that another
 * process takes over, pages mapped side by side, and nothing left after the end of the sharing.
 *
 *   sharing SHIM CONFIG    prints "shared", or why this system allows no process to take descriptors of another
 */
#include "torch.hpp"

#include "../../../ffi/torch/whole/exported_pages.hpp"
#include "../../../ffi/torch/whole/imported_pages.hpp"

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <vector>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

using cachalot_torch::ExportedPages;
using cachalot_torch::ImportedPages;
using cachalot_torch::PageHandle;
using cachalot_torch::Sender;

static constexpr size_t MEBIBYTE = 1 << 20, BYTES = 25 * MEBIBYTE;

static unsigned char pattern(size_t index, bool receiver) {
  return static_cast<unsigned char>((index * 2654435761u >> 13) ^ (receiver ? 0xff : 0));
}

static void write(const Driver &driver, void *to, bool receiver) {
  std::vector<unsigned char> bytes(BYTES);
  for (size_t index = 0; index < BYTES; ++index) {
    bytes[index] = pattern(index, receiver);
  }
  const auto copy = function<int(uint64_t, const void *, size_t)>(driver.library, "cuMemcpyHtoD_v2");
  NEEDED(copy(reinterpret_cast<uint64_t>(to), bytes.data(), BYTES));
}

static bool holds(const Driver &driver, void *from, bool receiver) {
  std::vector<unsigned char> bytes(BYTES);
  const auto copy = function<int(void *, uint64_t, size_t)>(driver.library, "cuMemcpyDtoH_v2");
  NEEDED(copy(bytes.data(), reinterpret_cast<uint64_t>(from), BYTES));
  for (size_t index = 0; index < BYTES; ++index) {
    if (bytes[index] != pattern(index, receiver)) {
      return false;
    }
  }
  return true;
}

static void say(int socket, const std::string &text) {
  NEEDED(send(socket, text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size()));
}

/* Ends the process if the other one has ended. */
static std::string hear(int socket) {
  std::string text(1 << 16, '\0');
  const ssize_t heard = recv(socket, text.data(), text.size(), 0);
  NEEDED(heard <= 0);
  text.resize(static_cast<size_t>(heard));
  return text;
}

/* The number of files that this process has open. */
static long open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

/* Runs a function that has to fail, and looks for a part of the sentence. */
template <typename Function>
static void fails(const char *part, Function run) {
  try {
    run();
    std::fprintf(stderr, "does not fail: %s\n", part);
    ++failures;
  } catch (const std::runtime_error &error) {
    if (std::strstr(error.what(), part) == nullptr) {
      std::fprintf(stderr, "expected: %s\ngot: %s\n", part, error.what());
      ++failures;
    }
  }
}

/* Runs a function in a child, which passes on the failures. */
template <typename Function>
static pid_t in_child(Function run) {
  const pid_t child = fork();
  NEEDED(child < 0);
  if (child == 0) {
    failures = 0;
    run();
    _exit(failures != 0);
  }
  return child;
}

static void wait_for(pid_t child) {
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Lets a system call fail from now on, as old kernels and the rules of containers do. */
static void deny(unsigned number, unsigned error) {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{4, rules};
  NEEDED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
  NEEDED(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

/* What a process is told that cannot open the memory. */
static void check_sentences(const PageHandle &handle, int foreign) {
  const auto open = [](PageHandle named, int device) { const ImportedPages mapped(named, device); };
  const pid_t dead = in_child([] {});
  wait_for(dead);
  PageHandle wrong = handle;
  wrong.process = dead;
  fails("has ended", [&] { open(wrong, 0); });
  wrong = handle;
  wrong.pages.back().descriptor = foreign;
  fails("GPU must be visible to this process", [&] { open(wrong, 0); });
  fails("device 77 cannot access the memory", [&] { open(handle, 77); });
  const std::string text = handle.text();
  for (const size_t length : {size_t{8}, size_t{40}, text.size() - 1, text.size() - sizeof(PageHandle::Page)}) {
    fails("is cut off", [&] { PageHandle::parse(text.substr(0, length)); });
  }
  CHECK(!PageHandle::is_in("") && !PageHandle::is_in(std::string(64, 'c')));
  const auto take = [&] { Sender(handle.process).import(handle.pages.front().descriptor); };
  wait_for(in_child([&] { deny(434, ENOSYS), fails("use Linux 5.6 or later", take); }));
  wait_for(in_child([&] { deny(438, ENOSYS), fails("use Linux 5.6 or later", take); }));
  wait_for(in_child([&] { deny(438, EPERM), fails("kernel.yama.ptrace_scope", take); }));
}

static void receive(int socket) {
  const pid_t sender = getppid();
  hear(socket);
  const long process = syscall(434, sender, 0);
  const long taken = syscall(438, process, 0, 0);
  if (taken < 0) {
    say(socket, std::string("skipped: taking a descriptor of another process: ") + std::strerror(errno));
    return;
  }
  say(socket, "allowed");
  const Driver driver;
  driver.use(0);
  const std::string text = hear(socket);
  const PageHandle handle = PageHandle::parse(text);
  const long files = open_files();
  CHECK(handle.process == sender && handle.pages.size() > 1 && handle.text() == text);
  {
    const ImportedPages mapped(handle, 0);
    CHECK(holds(driver, mapped.address(handle.offset), false));
    write(driver, mapped.address(handle.offset), true);
    say(socket, "written");
    /* The sender has freed the block. */
    hear(socket);
    CHECK(holds(driver, mapped.address(handle.offset), true));
    fails("has freed the memory", [&] { const ImportedPages again(handle, 0); });
  }
  say(socket, "closed");
  const PageHandle second = PageHandle::parse(hear(socket));
  check_sentences(second, socket);
  CHECK(open_files() == files);
  CHECK(driver.calls("cuMemMap") == driver.calls("cuMemUnmap"));
  CHECK(driver.calls("cuMemMap") == driver.calls("cuMemRelease"));
  CHECK(driver.calls("cuMemAddressReserve") == driver.calls("cuMemAddressFree"));
  say(socket, "refused");
  NEEDED(driver.release(0));
}

/* Shares a block twice. Returns the handle. */
static std::string share(ExportedPages &pages, const cachalot_allocator *allocator, const void *block) {
  cachalot_page_statistics before = CACHALOT_PAGE_STATISTICS_INIT, after = CACHALOT_PAGE_STATISTICS_INIT;
  NEEDED(cachalot_get_page_statistics(allocator, 0, &before));
  const std::string text = pages.share(allocator, block);
  CHECK(PageHandle::is_in(text) && pages.share(allocator, block) == text);
  NEEDED(cachalot_get_page_statistics(allocator, 0, &after));
  CHECK(after.export_fd.calls - before.export_fd.calls == PageHandle::parse(text).pages.size());
  CHECK(before.pinned_bytes == 0 && after.pinned_bytes >= BYTES);
  return text;
}

/* Nothing is pinned, and no descriptor of the handle is open. */
static void check_ended(const cachalot_allocator *allocator, const std::string &text) {
  cachalot_page_statistics pages = CACHALOT_PAGE_STATISTICS_INIT;
  NEEDED(cachalot_get_page_statistics(allocator, 0, &pages));
  CHECK(pages.pinned_bytes == 0);
  for (const PageHandle::Page &page : PageHandle::parse(text).pages) {
    CHECK(fcntl(static_cast<int>(page.descriptor), F_GETFD) == -1 && errno == EBADF);
  }
}

static void check_descriptor_limit(ExportedPages &pages, const cachalot_allocator *allocator, const void *block) {
  rlimit limit{};
  NEEDED(getrlimit(RLIMIT_NOFILE, &limit));
  const long files = open_files();
  const int next = dup(0);
  close(next);
  const rlimit few{static_cast<rlim_t>(next) + 1, limit.rlim_max};
  NEEDED(setrlimit(RLIMIT_NOFILE, &few));
  fails("raise the limit (ulimit -n)", [&] { pages.share(allocator, block); });
  NEEDED(setrlimit(RLIMIT_NOFILE, &limit));
  CHECK(open_files() == files);
}

static void send_blocks(Pluggable &torch, const cachalot_allocator *allocator, const Driver &driver, int socket) {
  void *first = torch.allocate(1000 * 1000, 0, nullptr), *block = torch.allocate(BYTES, 0, nullptr);
  ExportedPages pages;
  check_descriptor_limit(pages, allocator, block);
  write(driver, block, false);
  const std::string text = share(pages, allocator, block);
  say(socket, text);
  hear(socket);
  CHECK(holds(driver, block, true));

  pages.forget(first);
  CHECK(pages.share(allocator, block) == text);
  pages.forget(block);
  pages.forget(block);
  torch.free(block);
  check_ended(allocator, text);
  torch.empty_cache();
  void *other = torch.allocate(BYTES, 0, nullptr);
  write(driver, other, false);
  say(socket, "freed");
  hear(socket);
  CHECK(holds(driver, other, false));

  /* The system may give the descriptors again, and the handle is another one. */
  const std::string unused = share(pages, allocator, other);
  pages.forget(other);
  const std::string second = share(pages, allocator, other);
  CHECK(PageHandle::parse(second).number != PageHandle::parse(unused).number);
  say(socket, second);
  hear(socket);
  pages.forget(other);
  check_ended(allocator, second);
  torch.free(other);
  torch.free(first);
  torch.empty_cache();
  CHECK(stat("reserved_bytes.all.current") == 0);
}

/* A block of an ordinary segment has no pages, and is not pinned for the attempt. */
static void check_ordinary(Pluggable &torch, const cachalot_allocator *allocator) {
  ExportedPages pages;
  NEEDED(cachalot_torch_configure("expandable_segments:False"));
  void *block = torch.allocate(BYTES, 0, nullptr);
  CHECK(pages.share(allocator, block).empty());
  CHECK(cachalot_unpin(allocator, block) == CACHALOT_ERROR_NOT_PINNED);
  torch.free(block);
}

int main(int, char **argv) {
  int ends[2];
  NEEDED(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
  /* Before the first call of the driver, which does not survive a fork. */
  const pid_t child = in_child([&] { close(ends[0]), receive(ends[1]); });
  close(ends[1]);
  /* Where Yama restricts it, a process names those that may take its descriptors. */
  static_cast<void>(prctl(PR_SET_PTRACER, child));
  NEEDED(setenv("CACHALOT_CONF", argv[2], 1));
  say(ends[0], "ready");
  const std::string answer = hear(ends[0]);
  if (answer == "allowed") {
    const Driver driver;
    driver.use(0);
    Pluggable torch(argv[1]);
    cachalot_allocator *allocator = nullptr;
    NEEDED(cachalot_torch_allocator(&allocator));
    send_blocks(torch, allocator, driver, ends[0]);
    if (std::strstr(argv[2], "expandable") != nullptr) {
      check_ordinary(torch, allocator);
    }
  }
  wait_for(child);
  std::puts(answer == "allowed" ? "shared" : answer.c_str());
  return failures != 0;
}
