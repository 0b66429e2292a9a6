/* A library's constructor and another thread make the program's first requests at the same time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static int (*allocate)(unsigned long long *, unsigned long);

int request(void) {
    unsigned long long address = 0;
    return allocate(&address, 512);
}

static void *other(void *unused) {
    usleep(200000);
    request();
    return unused;
}

int main(int count, char **arguments) {
    pthread_t thread;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    allocate = driver ? (int (*)(unsigned long long *, unsigned long))dlsym(driver, "cuMemAlloc_v2") : NULL;
    if (count != 2 || allocate == NULL || pthread_create(&thread, NULL, other, NULL)) {
        return 1;
    }
    void *library = dlopen(arguments[1], RTLD_NOW);
    pthread_join(thread, NULL);
    puts(library != NULL ? "loaded" : dlerror());
    return library == NULL;
}
