/*
 * The receiver's side of shared blocks of pages: the pages of another process, mapped side by side.
 */
#pragma once

#include "page_handle.hpp"

#include <cerrno>
#include <cstdlib>

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace cachalot_torch {

/* The driver's functions that map the memory of another process. */
class MappingDriver {
  void *library = open();

  static void *open() {
    const char *named = std::getenv("CACHALOT_LIBCUDA");
    void *library = dlopen(named == nullptr || *named == '\0' ? "libcuda.so.1" : named, RTLD_NOW);
    if (library == nullptr) {
      throw std::runtime_error(std::string("memory of another process cannot be mapped: ") + dlerror());
    }
    return library;
  }

  /* A function of the driver, which becomes a pointer of the right type where it is kept. */
  struct Found {
    void *address;
    template <typename Function>
    operator Function *() const {
      return reinterpret_cast<Function *>(address);
    }
  };

  Found find(const char *name) const {
    void *address = dlsym(library, name);
    if (address == nullptr) {
      throw std::runtime_error(std::string("memory of another process cannot be mapped: the driver has no ") + name);
    }
    return {address};
  }

 public:
  /* CUmemAccessDesc. */
  struct Access {
    int location_type, device, flags;
  };

  int (*import)(uint64_t *, void *, int) = find("cuMemImportFromShareableHandle");
  int (*release)(uint64_t) = find("cuMemRelease");
  int (*reserve)(uint64_t *, size_t, size_t, uint64_t, uint64_t) = find("cuMemAddressReserve");
  int (*unreserve)(uint64_t, size_t) = find("cuMemAddressFree");
  int (*map)(uint64_t, size_t, size_t, uint64_t, uint64_t) = find("cuMemMap");
  int (*unmap)(uint64_t, size_t) = find("cuMemUnmap");
  int (*set_access)(uint64_t, size_t, const Access *, size_t) = find("cuMemSetAccess");
  int (*name_of)(int, const char **) = find("cuGetErrorName");

  /* Throws the answer of a call, unless it is success. */
  void require_success(int code, const std::string &failed) const {
    const char *name = nullptr;
    if (code != 0) {
      name_of(code, &name);
      throw std::runtime_error(failed + " (" + (name == nullptr ? std::to_string(code) : name) + ")");
    }
  }

  static const MappingDriver &loaded() {
    static const MappingDriver driver;
    return driver;
  }
};

/* Another process of this machine, whose descriptors this process takes over. */
class Sender {
  int64_t id;
  int process;

  static constexpr long pidfd_open = 434, pidfd_getfd = 438;

  [[noreturn]] void refuse(int error) const {
    const std::string sender = "process " + std::to_string(id);
    const std::string instead = ", or use expandable_segments:False under policy:caching there";
    switch (error) {
      case ESRCH:
        throw std::runtime_error(sender + ", which owns the memory to be opened, has ended");
      case EBADF:
        throw std::runtime_error(sender + " has freed the memory that is to be opened");
      case EPERM:
        throw std::runtime_error(sender +
                                 " lets this process take over no descriptors of its memory: set kernel.yama."
                                 "ptrace_scope to 0, call prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY) there, "
                                 "give a container CAP_SYS_PTRACE" +
                                 instead);
      case ENOSYS:
        throw std::runtime_error("the memory of " + sender +
                                 " is in expandable or stitched segments, which need pidfd_getfd to be opened: use "
                                 "Linux 5.6 or later" +
                                 instead);
      default:
        throw std::runtime_error("the memory of " + sender + " cannot be opened: " + std::strerror(error));
    }
  }

 public:
  explicit Sender(int64_t of) : id(of), process(static_cast<int>(syscall(pidfd_open, of, 0))) {
    if (process < 0) {
      refuse(errno);
    }
  }
  Sender(const Sender &) = delete;
  Sender &operator=(const Sender &) = delete;
  ~Sender() { static_cast<void>(close(process)); }

  /* Imports the page behind a descriptor of the process. */
  uint64_t import(int64_t descriptor) const {
    const int taken = static_cast<int>(syscall(pidfd_getfd, process, descriptor, 0));
    if (taken < 0) {
      refuse(errno);
    }
    const MappingDriver &driver = MappingDriver::loaded();
    uint64_t page = 0;
    const int imported =
        driver.import(&page, reinterpret_cast<void *>(static_cast<intptr_t>(taken)), 1 /* a POSIX descriptor */);
    static_cast<void>(close(taken));
    driver.require_success(imported, "the driver does not import the memory of process " + std::to_string(id) +
                                         ", and its GPU must be visible to this process, too");
    return page;
  }
};

/* The pages of another process, mapped until the destruction. The driver keeps their memory for so long. */
class ImportedPages {
  const MappingDriver &driver = MappingDriver::loaded();
  uint64_t begin = 0;
  size_t reserved = 0;
  std::vector<size_t> mapped;

  explicit ImportedPages(const std::vector<PageHandle::Page> &pages) {
    for (const PageHandle::Page &page : pages) {
      reserved += page.bytes;
    }
    mapped.reserve(pages.size());
    driver.require_success(driver.reserve(&begin, reserved, 0, 0, 0), "no addresses for the memory of another process");
  }

  void map(uint64_t at, uint64_t page, size_t bytes) {
    const int answer = driver.map(at, bytes, 0, page, 0);
    /* The mapping keeps the memory. */
    driver.release(page);
    driver.require_success(answer, "the memory of another process cannot be mapped");
    mapped.push_back(bytes);
  }

 public:
  /* Maps the pages that a handle names, for kernels of one device. */
  ImportedPages(const PageHandle &handle, int device) : ImportedPages(handle.pages) {
    const Sender sender(handle.process);
    uint64_t at = begin;
    for (const PageHandle::Page &page : handle.pages) {
      map(at, sender.import(page.descriptor), page.bytes);
      at += page.bytes;
    }
    const MappingDriver::Access full{1, device, 3};
    driver.require_success(driver.set_access(begin, reserved, &full, 1),
                           "device " + std::to_string(device) + " cannot access the memory of process " +
                               std::to_string(handle.process) + ", which is on another device without peer access");
  }
  ImportedPages(const ImportedPages &) = delete;
  ImportedPages &operator=(const ImportedPages &) = delete;
  /* No device may use the pages any more. */
  ~ImportedPages() {
    uint64_t at = begin;
    for (const size_t bytes : mapped) {
      driver.unmap(at, bytes);
      at += bytes;
    }
    driver.unreserve(begin, reserved);
  }

  void *address(uint64_t offset) const { return reinterpret_cast<void *>(begin + offset); }
};

}  // namespace cachalot_torch
