/*
 * The handle of a block of pages, as one process sends it to another.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace cachalot_torch {

/* Names the pages under a block, in the order of addresses, by descriptors of the process that shares the block. */
struct PageHandle {
  struct Page {
    uint64_t bytes;
    int64_t descriptor;
  };

  int64_t process = 0;
  /* Numbers that no other handle has: receivers keep handles, and the system gives descriptors again. */
  uint64_t origin = 0, number = 0;
  /* Offset of the block within the first page. */
  uint64_t offset = 0;
  std::vector<Page> pages;

  /* Reports whether a handle names pages, and not an ordinary segment. */
  static bool is_in(const std::string &text) { return text.compare(0, sizeof mark, mark, sizeof mark) == 0; }

  std::string text() const {
    const Head head{{}, process, origin, number, offset, pages.size()};
    std::string text(sizeof head + pages.size() * sizeof(Page), '\0');
    std::memcpy(text.data(), &head, sizeof head);
    std::memcpy(text.data(), mark, sizeof mark);
    std::memcpy(text.data() + sizeof head, pages.data(), pages.size() * sizeof(Page));
    return text;
  }

  static PageHandle parse(const std::string &text) {
    Head head{};
    std::memcpy(&head, text.data(), std::min(text.size(), sizeof head));
    if (!is_in(text) || text.size() < sizeof head || head.pages == 0 ||
        (text.size() - sizeof head) % sizeof(Page) != 0 || (text.size() - sizeof head) / sizeof(Page) != head.pages) {
      throw std::runtime_error("the handle of memory of another process is cut off, or of another version of cachalot");
    }
    PageHandle handle{head.process, head.origin, head.number, head.offset, std::vector<Page>(head.pages)};
    std::memcpy(handle.pages.data(), text.data() + sizeof head, head.pages * sizeof(Page));
    return handle;
  }

 private:
  /* The last digit is the version. PyTorch's allocator refuses the first byte as a later version of PyTorch. */
  static constexpr char mark[8] = {'c', 'a', 'c', 'h', 'a', 'l', 't', '1'};

  struct Head {
    char mark[8];
    int64_t process;
    uint64_t origin, number, offset, pages;
  };
};

}  // namespace cachalot_torch
