// Elastic ranges on the emulated driver, whose mappings have real memory: every part that is committed can be written
// and read, and what others write never shows there. Exported pages, too.
//
//   ranges [POLICY]
#include <cachalot.hpp>

#include <fcntl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

extern "C" {
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxSetCurrent(void* context);
int cuStreamCreate(cachalot_stream* stream, unsigned flags);
int cuStreamDestroy_v2(cachalot_stream stream);
int cuStreamSynchronize(cachalot_stream stream);
int cuMemsetD8Async(unsigned long long at, unsigned char value, std::size_t bytes, cachalot_stream stream);
int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, std::size_t bytes, cachalot_stream stream);
std::uint64_t emu_calls(const char* function);
}

#define EXPECT(condition)                                                                \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                      \
    }                                                                                    \
  } while (false)

namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;

// Fills `bytes` bytes in the order of `stream`.
void fill(void* at, std::size_t bytes, unsigned char value, cachalot_stream stream) {
  EXPECT(cuMemsetD8Async(reinterpret_cast<std::uintptr_t>(at), value, bytes, stream) == 0);
}

// Expects that every byte is `value`, in the order of `stream`.
void expect(const void* at, std::size_t bytes, unsigned char value, cachalot_stream stream) {
  std::vector<unsigned char> read(bytes);
  EXPECT(cuMemcpyDtoHAsync_v2(read.data(), reinterpret_cast<std::uintptr_t>(at), bytes, stream) == 0);
  EXPECT(cuStreamSynchronize(stream) == 0);
  EXPECT(read == std::vector<unsigned char>(bytes, value));
}

// A table grows page by page beside blocks, keeps its contents, and gives its memory to the blocks again.
void grow_and_shrink(const cachalot::allocator& allocator, cachalot_stream one, cachalot_stream two) {
  cachalot::range table(allocator, 64 * kPage);
  EXPECT(table && table.size() == 64 * kPage && table.page_bytes() == kPage);
  for (int round = 0; round < 4; ++round) {
    const std::uint64_t created = emu_calls("cuMemCreate");
    {
      cachalot::block block = allocator.allocate(24 * kPage, two);
      fill(block.data(), block.size(), 0x55, two);
      expect(block.data(), block.size(), 0x55, two);
    }
    for (std::size_t page = 0; page < 24; ++page) {
      table.commit(page * kPage, kPage, one);
      fill(table.as<char>() + page * kPage, kPage, static_cast<unsigned char>(page + 1), one);
    }
    EXPECT(allocator.statistics().reserved_bytes.current <= static_cast<std::int64_t>(32 * kPage));
    // A second stream may use the part once it waits for the first.
    EXPECT(cuStreamSynchronize(one) == 0);
    table.decommit(4 * kPage, 8 * kPage, two);
    cachalot::block other = allocator.allocate(7 * kPage, one);
    fill(other.data(), other.size(), 0x77, one);
    for (std::size_t page = 0; page < 24; ++page) {
      if (page < 4 || page >= 12) {
        expect(table.as<char>() + page * kPage, kPage, static_cast<unsigned char>(page + 1), one);
      }
    }
    expect(other.data(), other.size(), 0x77, one);
    table.decommit(0, 24 * kPage, one);
    if (round == 3 && std::getenv("RANGES_SAME_PAGES") != nullptr) {
      EXPECT(emu_calls("cuMemCreate") == created);
    }
    EXPECT(cachalot_check_invariants(allocator.get()) == CACHALOT_OK);
  }
}

// Objects own their ranges, and failures are exceptions.
void ownership(const cachalot::allocator& allocator, cachalot_stream stream) {
  cachalot::range range(allocator, kPage);
  cachalot::range moved = std::move(range);
  EXPECT(!range && moved && moved.data() != nullptr);
  moved.commit(0, kPage, stream);
  EXPECT(allocator.statistics().allocated_bytes.current == static_cast<std::int64_t>(kPage));
  range = std::move(moved);
  range = cachalot::range(allocator, 64 * kPage);
  EXPECT(allocator.statistics().allocated_bytes.current == 0 && allocator.statistics().allocations.current == 1);
  try {
    range.commit(0, 40 * kPage, stream);
    EXPECT(false);
  } catch (const cachalot::out_of_memory&) {
  }
  try {
    range.commit(1, kPage, stream);
    EXPECT(false);
  } catch (const cachalot::error& error) {
    EXPECT(error.status() == CACHALOT_ERROR_INVALID_ARGUMENT);
  }
  range.reset();
  EXPECT(!range && allocator.statistics().allocations.current == 0);
}

// An exported page owns its descriptor.
void exports(const cachalot::allocator& allocator, cachalot_stream stream) {
  const cachalot::block block = allocator.allocate(4 * kPage, stream);
  int fd = -1;
  allocator.pin(block.data());
  {
    cachalot::exported_page page = allocator.export_fd(block.as<char>() + kPage);
    fd = page.fd();
    cachalot::exported_page moved = std::move(page);
    EXPECT(page.fd() == -1 && moved.fd() == fd && fcntl(fd, F_GETFD) >= 0);
    moved = cachalot::exported_page();
    EXPECT(fcntl(fd, F_GETFD) < 0);
    fd = allocator.export_fd(block.data()).release();
    EXPECT(fcntl(fd, F_GETFD) >= 0 && close(fd) == 0);
  }
  allocator.unpin(block.data());
  try {
    allocator.export_fd(block.data());
    EXPECT(false);
  } catch (const cachalot::error& error) {
    EXPECT(error.status() == CACHALOT_ERROR_NOT_PINNED);
  }
}

}  // namespace

int main(int argc, char** argv) {
  void* context = nullptr;
  cachalot_stream one = nullptr, two = nullptr;
  EXPECT(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
  EXPECT(cuStreamCreate(&one, 1) == 0 && cuStreamCreate(&two, 1) == 0);
  {
    cachalot::options options;
    options.devices = {0};
    options.config = argc > 1 ? argv[1] : "";
    options.limit_bytes = 32 * kPage;
    // The streams live as long as the allocator, so pages may move in the order of their work.
    options.flags = CACHALOT_STREAMS_REPORTED;
    cachalot::allocator allocator(options);
    grow_and_shrink(allocator, one, two);
    ownership(allocator, one);
    if (!options.config.empty()) {
      exports(allocator, one);
    }
    allocator.stream_destroyed(0, one);
    allocator.stream_destroyed(0, two);
    allocator.destroy();
  }
  EXPECT(cuStreamDestroy_v2(one) == 0 && cuStreamDestroy_v2(two) == 0);
  EXPECT(cuDevicePrimaryCtxRelease_v2(0) == 0);
  std::puts("ranges: well");
  return 0;
}
