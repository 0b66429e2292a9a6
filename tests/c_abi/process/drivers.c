/* What cachalot_create answers with the driver that the environment gives: the argument is the name of the status. */
#include <cachalot.h>

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
  cachalot_allocator *allocator = NULL;
  const cachalot_status status = cachalot_create(NULL, &allocator);
  if (argc < 2 || strcmp(cachalot_status_name(status), argv[1]) != 0) {
    fprintf(stderr, "%s: %s\n", cachalot_status_name(status), cachalot_last_error());
    return 1;
  }
  return status == CACHALOT_OK ? cachalot_destroy(allocator) != CACHALOT_OK
                               : allocator != NULL || *cachalot_last_error() == '\0';
}
