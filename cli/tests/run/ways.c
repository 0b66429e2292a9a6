/* Opens the driver in the way that the first argument names, and prints for three functions whose they are: S of the library
 * in front, R of the real driver, - of nobody. The functions: one that the library replaces, one that the library does not
 * know, and the resolver. A second word has the same for the addresses that the resolver gives for the first two names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int resolver(const char *, void **, int, unsigned long long, int *);

static char whose(void *function) {
    Dl_info info;
    if (function == NULL || !dladdr(function, &info)) {
        return '-';
    }
    const char *name = strrchr(info.dli_fname, '/');
    return name != NULL && !strcmp(name, "/libcuda.so.1") && strstr(info.dli_fname, "/cachalot-run-") ? 'S' : 'R';
}

static void print(void *handle) {
    resolver *resolve = (resolver *)dlsym(handle, "cuGetProcAddress_v2");
    void *replaced = NULL, *other = NULL;
    int failed = resolve == NULL || resolve("cuMemAlloc", &replaced, 12000, 0, NULL) ||
                 resolve("cuDeviceGetCount", &other, 12000, 0, NULL);
    printf("%c%c%c %c%c\n", whose(dlsym(handle, "cuMemAlloc_v2")), whose(dlsym(handle, "cuDeviceGetCount")),
           whose((void *)resolve), failed ? '!' : whose(replaced), failed ? '!' : whose(other));
}

int main(int count, char **arguments) {
    const char *way = arguments[1], *path = count > 2 ? arguments[2] : "libcuda.so.1";
    void *handle = NULL;
    if (!strcmp(way, "open")) {
        handle = dlopen(path, RTLD_NOW);
    } else if (!strcmp(way, "deepbind")) {
        handle = dlopen(path, RTLD_LAZY | RTLD_DEEPBIND);
    } else if (!strcmp(way, "namespace")) {
        handle = dlmopen(LM_ID_NEWLM, path, RTLD_LAZY);
    } else if (!strcmp(way, "default")) {
        /* Of a program that links the driver, or finds the driver in a library that was loaded before. */
        handle = RTLD_DEFAULT;
    }
    if (handle == NULL && strcmp(way, "default")) {
        printf("%s\n", dlerror());
        return 1;
    }
    print(handle);
    return 0;
}
