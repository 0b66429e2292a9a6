/* Leads every way to the driver's library to one file: an auditor of the dynamic loader (rtld-audit(7)).
 *
 * The loader asks `la_objsearch` for each name that a program opens, and for each path that the loader is about to try.
 * The auditor runs in its own namespace before any library of the program, so the auditor uses no library, not even
 * the C library, and no memory but the names below.
 */
#define _GNU_SOURCE
#include <link.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* Written over in the copy that a program gets: the private folder's libcuda.so.1, the private folder's name of the real
 * driver, and the last component of the real driver's own path. Each text ends with a zero. The volatile qualifier has the
 * compiler read the texts instead of folding these ones into the code. */
static volatile char texts[3][4096] __attribute__((used)) = {
    "cachalot auditor: the library in front",
    "cachalot auditor: the alias of the driver",
    "cachalot auditor: the driver's own name",
};

static int equal(const char *one, const volatile char *other) {
    while (*one == *other && *one != 0) {
        one++;
        other++;
    }
    return *one == *other;
}

/* The part after the last slash; the whole name without a slash. */
static const char *last(const char *path) {
    const char *found = path;
    for (; *path != 0; path++) {
        if (*path == '/') {
            found = path + 1;
        }
    }
    return found;
}

/* Whether a file exists. A program may try one path after the other, and a path without a driver must fail as ever. */
static int exists(const char *path) {
#ifdef __x86_64__
    const long current_folder = -100;
    long answer = 269; /* faccessat */
    register long flags __asm__("r10") = 0;
    __asm__ volatile("syscall" : "+a"(answer) : "D"(current_folder), "S"(path), "d"(0L), "r"(flags) : "rcx", "r11", "memory");
    return answer == 0;
#else
#error "the auditor has the system call of x86-64 alone"
#endif
}

/* The cookie of the driver's own files. The loader's first value for a cookie is an address. */
#define OF_DRIVER 1

/* Whether the last part of a path is one of the driver's names: libcuda.so, with the number of any version. */
static int names_driver(const char *component) {
    const char *name = "libcuda.so", *rest = component;
    while (*name != 0 && *rest == *name) {
        name++;
        rest++;
    }
    if (*name == 0 && (*rest == 0 || (*rest == '.' && rest[1] != 0))) {
        while (*rest == '.' || (*rest >= '0' && *rest <= '9')) {
            rest++;
        }
        return *rest == 0;
    }
    return equal(component, texts[2]);
}

/* Every version of the interface up to this loader's newest has the three functions below in one form. */
EXPORT unsigned la_version(unsigned version) { return version; }

/* Marks the driver. A driver may consist of several files with its names, each of which loads the next: the library in front
 * would be loaded in place of the next one, and call the first one again, until the stack ends. Programs never get such a file,
 * so a file with one of the names is the driver's if it is not the library in front. */
EXPORT unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) {
    (void)space;
    const char *component = last(map->l_name);
    int alias = equal(component, (const volatile char *)last((const char *)texts[1]));
    if (alias || (names_driver(component) && !equal(map->l_name, texts[0]))) {
        *cookie = OF_DRIVER;
    }
    return 0;
}

EXPORT char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag) {
    (void)flag;
    const char *component = last(name);
    if (component == name) {
        /* A bare name is looked up in the library path. The alias must be found without a library path, too. */
        return equal(name, (const volatile char *)last((const char *)texts[1])) ? (char *)texts[1] : (char *)name;
    }
    return *cookie != OF_DRIVER && names_driver(component) && exists(name) ? (char *)texts[0] : (char *)name;
}
