/* Works with a number of MiB of memory for some rounds: of its blocks, one is freed and asked for anew in each. Every block is
 * read before its free and at the end. Prints a sum of what was read, or the code of the request that was refused. Argument: the MiB. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;
enum { BLOCKS = 12, ROUNDS = 60, PIECE = 1 << 20 };

static int (*allocate)(address *, size_t), (*release)(address);
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
};

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
    check(allocate(&block->at, bytes), "cuMemAlloc");
    block->bytes = bytes;
    block->value = value;
    check(fill(block->at, value, bytes), "cuMemsetD8");
}

int main(int count, char **arguments) {
    static struct block blocks[BLOCKS];
    size_t each = count == 2 ? (size_t)atoll(arguments[1]) / BLOCKS * PIECE : 0;
    unsigned long long sum = 0;
    void *context, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL || each == 0) {
        return 2;
    }
    *(void **)&allocate = dlsym(driver, "cuMemAlloc_v2");
    *(void **)&release = dlsym(driver, "cuMemFree_v2");
    *(void **)&fill = dlsym(driver, "cuMemsetD8_v2");
    *(void **)&read_ = dlsym(driver, "cuMemcpyDtoH_v2");
    check(((int (*)(unsigned))dlsym(driver, "cuInit"))(0), "cuInit");
    check(((int (*)(void **, unsigned, int))dlsym(driver, "cuCtxCreate_v2"))(&context, 0, 0), "cuCtxCreate");
    for (int at = 0; at < BLOCKS; at++) {
        take(&blocks[at], each, (unsigned char)at);
    }
    for (int round = 0; round < ROUNDS; round++) {
        struct block *block = &blocks[round * 7 % BLOCKS];
        sum += sum_of(block);
        check(release(block->at), "cuMemFree");
        take(block, each, (unsigned char)(round + BLOCKS));
    }
    for (int at = 0; at < BLOCKS; at++) {
        sum += sum_of(&blocks[at]);
        check(release(blocks[at].at), "cuMemFree");
    }
    printf("%llu\n", sum);
    return 0;
}
