/* Every function with a handle that was destroyed, and with numbers that never were one. */
#include "every_call.h"

#define ONE_CALL(name, arguments) REFUSED(&other, CACHALOT_ERROR_INVALID_HANDLE, name arguments);

static void every_call(const scene other, cachalot_allocator *handle) {
  const cachalot_allocator *allocator = handle;
  const int device = 0;
  const cachalot_pool pool = other.pool;
  void *block = other.small;
  EVERY_CALL(ONE_CALL, ONE_CALL)
  REFUSED(&other, CACHALOT_ERROR_INVALID_HANDLE, cachalot_destroy(handle));
}

int main(int argc, char **argv) {
  uint64_t on_the_stack[64] = {0};
  scene destroyed, other;
  int index;
  begin(argc, argv);
  destroyed = scene_open();
  other = scene_open();
  CHECK(destroyed.allocator != other.allocator);
  {
    scene copy = destroyed;
    scene_close(&copy);
  }
  every_call(other, destroyed.allocator);
  for (index = 0; index < 2; ++index) {
    /* The place is used again, the handle is not. */
    scene next = scene_open();
    CHECK(next.allocator != destroyed.allocator);
    every_call(next, destroyed.allocator);
    scene_close(&next);
  }
  every_call(other, (cachalot_allocator *)on_the_stack);
  every_call(other, (cachalot_allocator *)(uintptr_t)1);
  every_call(other, (cachalot_allocator *)UINTPTR_MAX);
  every_call(other, (cachalot_allocator *)((uintptr_t)other.allocator + 1));
  every_call(other, (cachalot_allocator *)((uintptr_t)other.allocator + 1024));
  scene_close(&other);
  return failures != 0;
}
