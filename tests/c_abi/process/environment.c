/* The active settings, printed: those of the environment, with the program's own (the argument) behind them. */
#include <cachalot.h>

#include <stdio.h>

int main(int argc, char **argv) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  char config[512];
  options.flags = CACHALOT_SIMULATED | CACHALOT_ENVIRONMENT;
  options.config = argc > 1 ? argv[1] : NULL;
  if (cachalot_create(&options, &allocator) != CACHALOT_OK ||
      cachalot_get_config(allocator, 0, config, sizeof config, NULL) != CACHALOT_OK ||
      cachalot_destroy(allocator) != CACHALOT_OK) {
    printf("%s\n", cachalot_last_error());
    return 1;
  }
  printf("%s\n", config);
  return 0;
}
