/* Random requests and frees of several threads, through functions that the resolver gave, with every byte checked.
 * Arguments: threads, and rounds of each thread. Prints `done`. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;
typedef int resolver(const char *, void **, int, unsigned long long, int *);

static int (*init)(unsigned), (*retain)(void **, int), (*set)(void *), (*free_)(address), (*info)(size_t *, size_t *);
static int (*allocate)(address *, size_t), (*allocate_async)(address *, size_t, void *), (*free_async)(address, void *);
static int (*range)(address *, size_t *, address), (*fill)(address, unsigned char, size_t, void *);
static int (*create)(void **, unsigned), (*wait_)(void *), (*read_)(void *, address, size_t), (*destroy)(void *);
static void *context;
static int rounds;

static void check(int code, const char *what) {
    if (code != 0) {
        printf("%s: %d\n", what, code);
        exit(1);
    }
}

static void resolve(void *driver, void *function, const char *name, int version) {
    check(((resolver *)dlsym(driver, "cuGetProcAddress_v2"))(name, function, version, 0, NULL), name);
}

struct block {
    address at;
    size_t bytes;
    unsigned char value;
    int ordered;
};

static void verify(const struct block *block, void *stream) {
    static __thread unsigned char copy[1 << 20];
    address base;
    size_t bytes;
    check(wait_(stream), "cuStreamSynchronize");
    check(range(&base, &bytes, block->at + block->bytes / 2), "cuMemGetAddressRange");
    if (base != block->at || bytes < block->bytes) {
        printf("the range of %zu bytes at %llx is %zu at %llx\n", block->bytes, block->at, bytes, base);
        exit(1);
    }
    for (size_t done = 0; done < block->bytes; done += sizeof copy) {
        size_t part = block->bytes - done < sizeof copy ? block->bytes - done : sizeof copy;
        check(read_(copy, block->at + done, part), "cuMemcpyDtoH");
        for (size_t i = 0; i < part; i++) {
            if (copy[i] != block->value) {
                printf("byte %zu of %zu is %d instead of %d\n", done + i, block->bytes, copy[i], block->value);
                exit(1);
            }
        }
    }
}

static void *work(void *number) {
    unsigned seed = (unsigned)(size_t)number + 1;
    struct block blocks[24] = {0};
    void *stream;
    check(set(context), "cuCtxSetCurrent");
    check(create(&stream, 1), "cuStreamCreate");
    for (int round = 0; round < rounds; round++) {
        struct block *block = &blocks[rand_r(&seed) % 24];
        if (block->at != 0) {
            verify(block, stream);
            check(block->ordered ? free_async(block->at, stream) : free_(block->at), "cuMemFree");
            block->at = 0;
            continue;
        }
        block->bytes = (size_t)1 + rand_r(&seed) % (rand_r(&seed) % 8 == 0 ? 3 << 20 : 40000);
        block->value = (unsigned char)(rand_r(&seed) | 1);
        block->ordered = rand_r(&seed) % 2;
        check(block->ordered ? allocate_async(&block->at, block->bytes, stream) : allocate(&block->at, block->bytes),
              "cuMemAlloc");
        check(fill(block->at, block->value, block->bytes, stream), "cuMemsetD8Async");
    }
    for (int i = 0; i < 24; i++) {
        if (blocks[i].at != 0) {
            verify(&blocks[i], stream);
            check(blocks[i].ordered ? free_async(blocks[i].at, stream) : free_(blocks[i].at), "cuMemFree");
        }
    }
    check(wait_(stream), "cuStreamSynchronize");
    check(destroy(stream), "cuStreamDestroy");
    return NULL;
}

int main(int count, char **arguments) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int threads = count > 1 ? atoi(arguments[1]) : 1;
    rounds = count > 2 ? atoi(arguments[2]) : 100;
    resolve(driver, &init, "cuInit", 2000);
    resolve(driver, &retain, "cuDevicePrimaryCtxRetain", 7000);
    resolve(driver, &set, "cuCtxSetCurrent", 4000);
    resolve(driver, &allocate, "cuMemAlloc", 3020);
    resolve(driver, &free_, "cuMemFree", 3020);
    resolve(driver, &allocate_async, "cuMemAllocAsync", 11020);
    resolve(driver, &free_async, "cuMemFreeAsync", 11020);
    resolve(driver, &range, "cuMemGetAddressRange", 3020);
    resolve(driver, &info, "cuMemGetInfo", 3020);
    resolve(driver, &fill, "cuMemsetD8Async", 3020);
    resolve(driver, &read_, "cuMemcpyDtoH", 3020);
    resolve(driver, &create, "cuStreamCreate", 2000);
    resolve(driver, &wait_, "cuStreamSynchronize", 2000);
    resolve(driver, &destroy, "cuStreamDestroy", 4000);
    check(init(0), "cuInit");
    check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(set(context), "cuCtxSetCurrent");
    size_t total = 0;
    /* Only one of the two is asked for, as some programs do. */
    check(info(NULL, &total), "cuMemGetInfo");
    if (total == 0) {
        printf("the device has no memory\n");
        return 1;
    }
    pthread_t handles[16];
    for (int i = 0; i < threads; i++) {
        pthread_create(&handles[i], NULL, work, (void *)(size_t)i);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(handles[i], NULL);
    }
    printf("done\n");
    return 0;
}
