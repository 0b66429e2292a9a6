/* Uses the driver, and then in the way that the first argument names: in a forked child, in threads that end, after the library
 * was closed and opened again, or up to a death by a signal with memory outstanding. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long long address;
static int (*init)(unsigned), (*retain)(void **, int), (*set)(void *), (*allocate)(address *, size_t), (*release)(address);
static void *context;

static void check(int code, const char *what) {
    if (code != 0) {
        printf("%s: %d\n", what, code);
        fflush(stdout);
        _exit(1);
    }
}

static void *open_driver(void) {
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&init = dlsym(handle, "cuInit");
    *(void **)&retain = dlsym(handle, "cuDevicePrimaryCtxRetain");
    *(void **)&set = dlsym(handle, "cuCtxSetCurrent");
    *(void **)&allocate = dlsym(handle, "cuMemAlloc_v2");
    *(void **)&release = dlsym(handle, "cuMemFree_v2");
    return handle;
}

static void begin(void) {
    check(init(0), "cuInit");
    check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(set(context), "cuCtxSetCurrent");
}

static void use(void) {
    address blocks[8];
    for (int i = 0; i < 8; i++) {
        check(allocate(&blocks[i], 1 << (12 + i)), "cuMemAlloc");
    }
    for (int i = 0; i < 8; i++) {
        check(release(blocks[i]), "cuMemFree");
    }
}

static void *thread(void *unused) {
    (void)unused;
    check(set(context), "cuCtxSetCurrent");
    use();
    return NULL;
}

int main(int count, char **arguments) {
    const char *way = count > 1 ? arguments[1] : "";
    void *handle = open_driver();
    if (!strcmp(way, "early")) {
        /* The child of a process that has not started with the driver is an ordinary process. */
        if (fork() == 0) {
            begin();
            use();
            exit(0);
        }
        int status;
        wait(&status);
        check(status, "the child");
        begin();
        use();
    } else if (!strcmp(way, "late")) {
        begin();
        use();
        if (fork() == 0) {
            address block;
            /* The driver's own answer in a child: anything but a success, and no crash. */
            exit(allocate(&block, 4096) == 0);
        }
        int status;
        wait(&status);
        check(status, "the child");
        use();
    } else if (!strcmp(way, "threads")) {
        begin();
        for (int round = 0; round < 16; round++) {
            pthread_t threads[4];
            for (int i = 0; i < 4; i++) {
                pthread_create(&threads[i], NULL, thread, NULL);
            }
            for (int i = 0; i < 4; i++) {
                pthread_join(threads[i], NULL);
            }
        }
    } else if (!strcmp(way, "close")) {
        begin();
        use();
        int (*old)(address *, size_t) = allocate;
        for (int round = 0; round < 3; round++) {
            dlclose(handle);
            handle = open_driver();
            begin();
            use();
        }
        /* An address from before the close is one that a program may have kept. */
        address block;
        check(old(&block, 4096), "cuMemAlloc");
    } else if (!strcmp(way, "signal")) {
        address block;
        begin();
        check(allocate(&block, 1 << 20), "cuMemAlloc");
        raise(SIGKILL);
    } else if (!strcmp(way, "exit")) {
        address block;
        begin();
        check(allocate(&block, 1 << 20), "cuMemAlloc");
    }
    printf("done\n");
    return 0;
}
