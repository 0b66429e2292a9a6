/* Every function with a device that the allocator does not have. */
#include "every_call.h"

#include <limits.h>

#define ALLOCATOR_CALL(name, arguments)
#define DEVICE_CALL(name, arguments) REFUSED(&it, CACHALOT_ERROR_UNKNOWN_DEVICE, name arguments);

static void every_call(const scene it, int device) {
  const cachalot_allocator *allocator = it.allocator;
  const cachalot_pool pool = it.pool;
  EVERY_CALL(ALLOCATOR_CALL, DEVICE_CALL)
}

int main(int argc, char **argv) {
  cachalot_options options;
  cachalot_allocator *none = NULL;
  const int ordinals[2] = {0, 99};
  const int negative = -1;
  scene it;
  begin(argc, argv);
  it = scene_open();
  every_call(it, it.devices);
  every_call(it, -1);
  every_call(it, INT_MAX);
  every_call(it, INT_MIN);
  if ((scene_options.flags & CACHALOT_SIMULATED) == 0) {
    /* The driver is asked for these. */
    options = scene_options;
    options.device_count = 2;
    options.devices = ordinals;
    CHECK(cachalot_create(&options, &none) == CACHALOT_ERROR_UNKNOWN_DEVICE && none == NULL);
    options.device_count = 1;
    options.devices = &negative;
    CHECK(cachalot_create(&options, &none) == CACHALOT_ERROR_UNKNOWN_DEVICE && none == NULL);
  }
  scene_close(&it);
  return failures != 0;
}
