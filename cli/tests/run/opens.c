/* Opens a library by its bare name: by itself, or, with a second argument, through the function of another library. */
#include <dlfcn.h>
#include <stdio.h>

const char *open_by_name(const char *name) { return dlopen(name, RTLD_NOW) ? "found" : dlerror(); }

int main(int count, char **arguments) {
    typedef const char *open_function(const char *);
    open_function *open = open_by_name;
    if (count > 2) {
        void *library = dlopen(arguments[2], RTLD_NOW | RTLD_LOCAL);
        open = library ? (open_function *)dlsym(library, "open_by_name") : NULL;
    }
    puts(count > 1 && open ? open(arguments[1]) : "no library");
    return 0;
}
