// The driver of a program that opens the library by itself.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *driver;

static void *function(const char *name) {
  void *found = dlsym(driver, name);
  if (!found) {
    printf("no %s\n", name);
    exit(1);
  }
  return found;
}
