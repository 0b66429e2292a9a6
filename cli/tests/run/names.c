/* Prints, for each name of a function that is an argument, whether the loader finds the function in the driver, and which of
 * the named functions both resolvers give for the name without its version, at several versions and flags of the caller. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int first(const char *, void **, int, unsigned long long);
typedef int second(const char *, void **, int, unsigned long long, int *);

static void *driver;
static char **names;
static void *addresses[4096];

/* The name under which the loader knows an address. */
static const char *named(void *address) {
    for (int i = 0; names[i] != NULL; i++) {
        if (address != NULL && addresses[i] == address) {
            return names[i];
        }
    }
    return address == NULL ? "nothing" : "another";
}

int main(int count, char **arguments) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    names = arguments + 1;
    for (int i = 1; i < count; i++) {
        addresses[i - 1] = dlsym(driver, arguments[i]);
    }
    first *old = (first *)dlsym(driver, "cuGetProcAddress");
    second *new = (second *)dlsym(driver, "cuGetProcAddress_v2");
    static const int versions[] = {3000, 8000, 11040, 12000, 12040, 13000};
    for (int i = 1; i < count; i++) {
        char base[64];
        snprintf(base, sizeof base, "%s", arguments[i]);
        char *end = strstr(base, "_v");
        if (end != NULL) {
            *end = 0;
        }
        printf("%s %s", arguments[i], dlsym(driver, arguments[i]) == NULL ? "missing" : "found");
        for (unsigned v = 0; v < sizeof versions / sizeof *versions; v++) {
            for (unsigned long long flags = 0; flags <= 2; flags++) {
                void *address = NULL;
                int status = -1;
                if (old != NULL) {
                    int code = old(base, &address, versions[v], flags);
                    printf(" %d:%s", code, named(address));
                }
                if (new != NULL) {
                    address = NULL;
                    int code = new (base, &address, versions[v], flags, NULL);
                    printf(" %d:%s", code, named(address));
                    address = NULL;
                    code = new (base, &address, versions[v], flags, &status);
                    printf(" %d:%s:%d", code, named(address), status);
                }
            }
        }
        printf("\n");
    }
    return 0;
}
