/* Works with a number of MiB of memory for some rounds: of its blocks, one is freed and asked for anew in each. Every block is
 * read before its free and at the end. Prints a sum of what was read, or the code of the request that was refused. To stderr go the
 * kinds of memory that the driver names for the blocks (CU_POINTER_ATTRIBUTE_MEMORY_TYPE).
 * Arguments: the MiB, and `maps` for memory that the program maps by itself. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;
enum { BLOCKS = 12, ROUNDS = 60, PIECE = 1 << 20 };

static int (*allocate)(address *, size_t), (*release)(address);
static int (*create)(unsigned long long *, size_t, const void *, unsigned long long), (*end)(unsigned long long);
static int (*reserve)(address *, size_t, size_t, address, unsigned long long), (*unreserve)(address, size_t);
static int (*map)(address, size_t, size_t, unsigned long long, unsigned long long), (*unmap)(address, size_t);
static int (*give_access)(address, size_t, const void *, size_t), (*ask)(void *, int, address);
static int (*fill)(address, unsigned char, size_t), (*read_)(void *, address, size_t);

static void check(int code, const char *what) {
    if (code != 0) {
        printf("%s: %d\n", what, code);
        exit(1);
    }
}

struct block {
    address at;
    size_t bytes;
    unsigned char value;
    unsigned long long handle;
};

static int maps;

/* Pinned memory of device 0 that can be exported, as many programs ask for. */
static const struct {
    int kind, handle_types, place, device;
    void *metadata;
    unsigned char flags[8];
} properties = {1, 1, 1, 0, NULL, {0}};
/* Device 0 reads and writes. */
static const int access_of_device[3] = {1, 0, 3};

static unsigned long long sum_of(const struct block *block) {
    static unsigned char copy[PIECE];
    unsigned long long sum = 0;
    for (size_t done = 0; done < block->bytes; done += PIECE) {
        check(read_(copy, block->at + done, PIECE), "cuMemcpyDtoH");
        for (size_t at = 0; at < PIECE; at++) {
            if (copy[at] != block->value) {
                printf("byte %zu is %d instead of %d\n", done + at, copy[at], block->value);
                exit(1);
            }
            sum += copy[at];
        }
    }
    return sum;
}

static void take(struct block *block, size_t bytes, unsigned char value) {
    if (maps) {
        check(create(&block->handle, bytes, &properties, 0), "cuMemCreate");
        check(reserve(&block->at, bytes, 0, 0, 0), "cuMemAddressReserve");
        check(map(block->at, bytes, 0, block->handle, 0), "cuMemMap");
        check(give_access(block->at, bytes, access_of_device, 1), "cuMemSetAccess");
    } else {
        check(allocate(&block->at, bytes), "cuMemAlloc");
    }
    block->bytes = bytes;
    block->value = value;
    check(fill(block->at, value, bytes), "cuMemsetD8");
}

static void give(const struct block *block) {
    if (maps) {
        check(unmap(block->at, block->bytes), "cuMemUnmap");
        check(end(block->handle), "cuMemRelease");
        check(unreserve(block->at, block->bytes), "cuMemAddressFree");
    } else {
        check(release(block->at), "cuMemFree");
    }
}

int main(int count, char **arguments) {
    static struct block blocks[BLOCKS];
    size_t each = count >= 2 ? (size_t)atoll(arguments[1]) / BLOCKS * PIECE : 0;
    unsigned long long sum = 0;
    void *context, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL || each == 0) {
        return 2;
    }
    *(void **)&allocate = dlsym(driver, "cuMemAlloc_v2");
    *(void **)&release = dlsym(driver, "cuMemFree_v2");
    maps = count == 3 && strcmp(arguments[2], "maps") == 0;
    *(void **)&create = dlsym(driver, "cuMemCreate");
    *(void **)&end = dlsym(driver, "cuMemRelease");
    *(void **)&reserve = dlsym(driver, "cuMemAddressReserve");
    *(void **)&unreserve = dlsym(driver, "cuMemAddressFree");
    *(void **)&map = dlsym(driver, "cuMemMap");
    *(void **)&unmap = dlsym(driver, "cuMemUnmap");
    *(void **)&give_access = dlsym(driver, "cuMemSetAccess");
    *(void **)&ask = dlsym(driver, "cuPointerGetAttribute");
    *(void **)&fill = dlsym(driver, "cuMemsetD8_v2");
    *(void **)&read_ = dlsym(driver, "cuMemcpyDtoH_v2");
    check(((int (*)(unsigned))dlsym(driver, "cuInit"))(0), "cuInit");
    check(((int (*)(void **, unsigned, int))dlsym(driver, "cuCtxCreate_v2"))(&context, 0, 0), "cuCtxCreate");
    for (int at = 0; at < BLOCKS; at++) {
        take(&blocks[at], each, (unsigned char)at);
    }
    for (int at = 0; at < BLOCKS; at++) {
        int kind = 0;
        check(ask(&kind, 2, blocks[at].at), "cuPointerGetAttribute");
        fprintf(stderr, "%d ", kind);
    }
    fprintf(stderr, "\n");
    for (int round = 0; round < ROUNDS; round++) {
        struct block *block = &blocks[round * 7 % BLOCKS];
        sum += sum_of(block);
        give(block);
        take(block, each, (unsigned char)(round + BLOCKS));
    }
    for (int at = 0; at < BLOCKS; at++) {
        sum += sum_of(&blocks[at]);
        give(&blocks[at]);
    }
    printf("%llu\n", sum);
    return 0;
}
