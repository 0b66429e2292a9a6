/*
 * A pinned block in two processes: the other process imports the pages, maps them, and both read and write the same
 * bytes, until the other process lets go. Runs on the emulated driver and on a GPU.
 *
 *   export CONFIG    the exchange, under a configuration with pages
 *   export --codes   what the driver answers to wrong exports and imports
 */
#include "../misuse/misuse.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long long address;
/* CUmemAllocationProp, CUmemAccessDesc. */
typedef struct properties {
  int type, handle_types, location_type, location;
  void *metadata;
  unsigned char flags[8];
} properties;
typedef struct access {
  int location_type, location, flags;
} access_descriptor;

unsigned cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuDevicePrimaryCtxRelease_v2(int);
unsigned cuCtxSetCurrent(void *), cuMemcpyHtoD_v2(address, const void *, size_t);
unsigned cuMemcpyDtoH_v2(void *, address, size_t), cuMemAddressReserve(address *, size_t, size_t, address, address);
unsigned cuMemAddressFree(address, size_t), cuMemCreate(address *, size_t, const properties *, address);
unsigned cuMemRelease(address), cuMemMap(address, size_t, size_t, address, address), cuMemUnmap(address, size_t);
unsigned cuMemSetAccess(address, size_t, const access_descriptor *, size_t);
unsigned cuMemExportToShareableHandle(void *, address, int, address);
unsigned cuMemImportFromShareableHandle(address *, void *, int);

enum { MEBIBYTE = 1 << 20, BYTES = 45 * MEBIBYTE, MOST = 64, POSIX_FD = 1 };

/* The steps of the exchange. */
enum { PAGE = 1, READ, WRITTEN, RETURNED, UNCHANGED, END };

/* Tells the other process of a step. With `PAGE` come an extent, and the descriptor of its page. */
typedef struct message {
  int step;
  cachalot_extent extent;
} message;

static unsigned char bytes[BYTES];

#define DRIVER(call) NEEDED((int)(call))
/* Ends the program if the condition does not hold. */
#define ENSURE(condition) NEEDED((condition) ? CACHALOT_OK : 1)

static address number(const void *pointer) { return (address)(uintptr_t)pointer; }

/* The byte at an offset of the block, as the parent writes it, and as the child does. */
static unsigned char pattern(uint64_t offset, int child) {
  return (unsigned char)((offset * 2654435761u >> 13) ^ (child ? 0xff : 0));
}

static void enter(void) {
  void *context = NULL;
  DRIVER(cuInit(0));
  DRIVER(cuDevicePrimaryCtxRetain(&context, 0));
  DRIVER(cuCtxSetCurrent(context));
}

static void leave(void) { DRIVER(cuDevicePrimaryCtxRelease_v2(0)); }

/* Sends a message, with a descriptor unless `fd` is negative. */
static void tell(int socket, const message *what, int fd) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
  } rights = {{0}};
  struct iovec part = {(void *)(uintptr_t)what, sizeof *what};
  struct msghdr all = {NULL, 0, &part, 1, NULL, 0, 0};
  if (fd >= 0) {
    all.msg_control = &rights;
    all.msg_controllen = sizeof rights.room;
    rights.header.cmsg_level = SOL_SOCKET;
    rights.header.cmsg_type = SCM_RIGHTS;
    rights.header.cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(&rights.header), &fd, sizeof fd);
  }
  ENSURE(sendmsg(socket, &all, MSG_NOSIGNAL) == (ssize_t)sizeof *what);
}

/* Receives a message. Returns the descriptor, or -1. Ends the process if the other one has ended. */
static int hear(int socket, message *what) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
  } rights = {{0}};
  struct iovec part = {what, sizeof *what};
  struct msghdr all = {NULL, 0, &part, 1, &rights, sizeof rights.room, 0};
  int fd = -1;
  ENSURE(recvmsg(socket, &all, MSG_WAITALL) == (ssize_t)sizeof *what);
  if (all.msg_controllen >= sizeof rights.header && rights.header.cmsg_type == SCM_RIGHTS) {
    memcpy(&fd, CMSG_DATA(&rights.header), sizeof fd);
  }
  return fd;
}

static void expect(int socket, int step) {
  message heard;
  CHECK(hear(socket, &heard) < 0 && heard.step == step);
}

static void say(int socket, int step) {
  const message said = {step, {0, 0, 0, 0, 0, 0, 0}};
  tell(socket, &said, -1);
}

/* Maps an imported page. Returns the handle. */
static address import(const cachalot_extent *extent, int fd, address *at) {
  const access_descriptor full = {1, 0, 3};
  address handle = 0;
  DRIVER(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, POSIX_FD));
  DRIVER(cuMemAddressReserve(at, extent->memory_bytes, 0, 0, 0));
  DRIVER(cuMemMap(*at, extent->memory_bytes, 0, handle, 0));
  DRIVER(cuMemSetAccess(*at, extent->memory_bytes, &full, 1));
  return handle;
}

/* Compares the bytes of an extent in this process with the pattern. */
static int holds(const cachalot_extent *extent, address at, int child) {
  uint64_t index;
  DRIVER(cuMemcpyDtoH_v2(bytes, at + extent->memory_offset, extent->bytes));
  for (index = 0; index < extent->bytes; ++index) {
    if (bytes[index] != pattern(extent->offset + index, child)) {
      return 0;
    }
  }
  return 1;
}

/* The other process: has a context of its own, and no allocator. */
static int other_process(int socket) {
  message heard;
  cachalot_extent extents[MOST];
  address at[MOST], handles[MOST];
  uint64_t index;
  int count = 0, page, fd;
  enter();
  while ((fd = hear(socket, &heard)) >= 0) {
    ENSURE(count < MOST && heard.step == PAGE);
    extents[count] = heard.extent;
    handles[count] = import(&heard.extent, fd, &at[count]);
    /* The import does not need the descriptor any more. */
    CHECK(close(fd) == 0);
    ++count;
  }
  CHECK(heard.step == READ && count > 1);
  for (page = 0; page < count; ++page) {
    CHECK(holds(&extents[page], at[page], 0));
    for (index = 0; index < extents[page].bytes; ++index) {
      bytes[index] = pattern(extents[page].offset + index, 1);
    }
    DRIVER(cuMemcpyHtoD_v2(at[page] + extents[page].memory_offset, bytes, extents[page].bytes));
  }
  say(socket, WRITTEN);
  /* The parent has returned the pages to the driver, and uses others. */
  expect(socket, RETURNED);
  for (page = 0; page < count; ++page) {
    CHECK(holds(&extents[page], at[page], 1));
    DRIVER(cuMemUnmap(at[page], extents[page].memory_bytes));
    DRIVER(cuMemRelease(handles[page]));
    DRIVER(cuMemAddressFree(at[page], extents[page].memory_bytes));
  }
  say(socket, UNCHANGED);
  expect(socket, END);
  leave();
  return failures != 0;
}

/* Exports every page under a block that is pinned, and sends the descriptors. Returns their number. */
static size_t share(const cachalot_allocator *allocator, void *block, int socket) {
  cachalot_extent extents[MOST];
  size_t count = MOST, index;
  NEEDED(cachalot_get_extents(allocator, block, extents, &count));
  for (index = 0; index < count; ++index) {
    message page = {PAGE, {0, 0, 0, 0, 0, 0, 0}};
    int fd = -1;
    page.extent = extents[index];
    NEEDED(cachalot_export_fd(allocator, (char *)block + extents[index].offset, &fd));
    tell(socket, &page, fd);
    CHECK(fd >= 0 && close(fd) == 0);
  }
  return count;
}

static void check_refused(const cachalot_allocator *allocator, const void *at, cachalot_status expected) {
  int fd = -7;
  CHECK(cachalot_export_fd(allocator, at, &fd) == expected && fd == -7);
}

/* Memory of an ordinary segment has no handle, whatever the driver can do. */
static void check_segment(void) {
  cachalot_allocator *allocator = NULL;
  void *block = NULL;
  scene_options.config = NULL;
  NEEDED(cachalot_create(&scene_options, &allocator));
  NEEDED(cachalot_malloc(allocator, 0, 40 * MEBIBYTE, NULL, &block));
  check_refused(allocator, block, CACHALOT_ERROR_NOT_PINNED);
  NEEDED(cachalot_pin(allocator, block));
  check_refused(allocator, block, CACHALOT_ERROR_UNSUPPORTED);
  CHECK(strstr(cachalot_last_error(), "ordinary segment") != NULL);
  NEEDED(cachalot_unpin(allocator, block));
  NEEDED(cachalot_free(allocator, block));
  NEEDED(cachalot_destroy(allocator));
}

/* The process with the allocator. */
static void exchange(const char *config, int socket) {
  const cachalot_extent whole = {0, BYTES, 0, 0, BYTES, 0, 0};
  cachalot_allocator *allocator = NULL;
  cachalot_page_statistics pages = CACHALOT_PAGE_STATISTICS_INIT;
  void *block = NULL, *other = NULL;
  uint64_t index;
  size_t count;
  scene_options.config = config;
  NEEDED(cachalot_create(&scene_options, &allocator));
  NEEDED(cachalot_malloc(allocator, 0, BYTES, NULL, &block));
  for (index = 0; index < BYTES; ++index) {
    bytes[index] = pattern(index, 0);
  }
  DRIVER(cuMemcpyHtoD_v2(number(block), bytes, BYTES));
  check_refused(allocator, block, CACHALOT_ERROR_NOT_PINNED);
  check_refused(allocator, NULL, CACHALOT_ERROR_NOT_PINNED);
  NEEDED(cachalot_pin(allocator, block));
  CHECK(cachalot_export_fd(allocator, block, NULL) == CACHALOT_ERROR_NULL);
  check_refused(allocator, (char *)block + 64 * MEBIBYTE, CACHALOT_ERROR_NOT_PINNED);
  count = share(allocator, block, socket);
  NEEDED(cachalot_get_page_statistics(allocator, 0, &pages));
  CHECK(pages.export_fd.calls == count && pages.pinned_bytes >= BYTES);
  say(socket, READ);
  expect(socket, WRITTEN);
  CHECK(holds(&whole, number(block), 1));

  /* The pages go back to the driver, which keeps them for the other process. */
  NEEDED(cachalot_free(allocator, block));
  NEEDED(cachalot_unpin(allocator, block));
  check_refused(allocator, block, CACHALOT_ERROR_NOT_PINNED);
  NEEDED(cachalot_empty_cache(allocator, 0));
  NEEDED(cachalot_malloc(allocator, 0, BYTES, NULL, &other));
  memset(bytes, 0x5a, BYTES);
  DRIVER(cuMemcpyHtoD_v2(number(other), bytes, BYTES));
  say(socket, RETURNED);
  expect(socket, UNCHANGED);
  NEEDED(cachalot_free(allocator, other));
  NEEDED(cachalot_check_invariants(allocator));
  NEEDED(cachalot_destroy(allocator));
  printf("export: well, %u pages in %u us\n", (unsigned)count, (unsigned)pages.export_fd.us);
}

/* Prints the driver's answers to what the library does not do. */
static void codes(void) {
  properties wanted = {1, 0, 1, 0, NULL, {0}};
  address plain = 0, shared = 0, imported = 0;
  const int file = open("/dev/null", O_RDONLY);
  int fd = -1, again = -1;
  DRIVER(cuMemCreate(&plain, 2 * MEBIBYTE, &wanted, 0));
  wanted.handle_types = POSIX_FD;
  DRIVER(cuMemCreate(&shared, 2 * MEBIBYTE, &wanted, 0));
  printf("export of memory without a type of handle: %u\n", cuMemExportToShareableHandle(&fd, plain, POSIX_FD, 0));
  printf("export as no type: %u\n", cuMemExportToShareableHandle(&fd, shared, 0, 0));
  printf("export with a flag: %u\n", cuMemExportToShareableHandle(&fd, shared, POSIX_FD, 1));
  printf("import of another file: %u\n",
         cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)file, POSIX_FD));
  printf("import of no file: %u\n", cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)-1, POSIX_FD));
  DRIVER(cuMemExportToShareableHandle(&fd, shared, POSIX_FD, 0));
  DRIVER(cuMemRelease(shared));
  printf("import after the release: %u\n",
         cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, POSIX_FD));
  printf("export of an import: %u\n", cuMemExportToShareableHandle(&again, imported, POSIX_FD, 0));
  close(file);
  close(fd);
  close(again);
  DRIVER(cuMemRelease(imported));
  DRIVER(cuMemRelease(plain));
}

int main(int argc, char **argv) {
  int ends[2], status = -1;
  pid_t child;
  ENSURE(argc == 2 && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
  if (strcmp(argv[1], "--codes") == 0) {
    enter();
    codes();
    leave();
    return failures != 0;
  }
  /* Before the first call of the driver, which does not survive a fork. */
  child = fork();
  ENSURE(child >= 0);
  if (child == 0) {
    close(ends[0]);
    return other_process(ends[1]);
  }
  close(ends[1]);
  enter();
  check_segment();
  exchange(argv[1], ends[0]);
  say(ends[0], END);
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  leave();
  return failures != 0;
}
