/* Requests that no device can serve: those at the edges of the arithmetic, and those that are merely larger than the
 * device. */
#include "misuse.h"

int main(int argc, char **argv) {
  const size_t exbibyte = (size_t)1 << 60;
  const size_t absurd[] = {exbibyte,         exbibyte - 1, exbibyte - 511, exbibyte + 1,    exbibyte * 2,
                           exbibyte * 8 - 1, exbibyte * 8, SIZE_MAX / 2,   SIZE_MAX - 4096, SIZE_MAX - 512,
                           SIZE_MAX - 511,   SIZE_MAX - 1, SIZE_MAX};
  cachalot_device_info device = CACHALOT_DEVICE_INFO_INIT;
  cachalot_forecast outlook = CACHALOT_FORECAST_INIT;
  void *block = &block;
  scene it;
  size_t index;
  begin(argc, argv);
  it = scene_open();
  for (index = 0; index < sizeof absurd / sizeof *absurd; ++index) {
    REFUSED(&it, CACHALOT_ERROR_TOO_LARGE, cachalot_malloc(it.allocator, 0, absurd[index], NULL, &block));
    REFUSED(&it, CACHALOT_ERROR_TOO_LARGE, cachalot_get_forecast(it.allocator, 0, absurd[index], NULL, &outlook));
    CHECK(block == &block && outlook.outcome == 0);
  }
  /* The driver is asked for these. */
  NEEDED(cachalot_get_device_info(it.allocator, 0, &device));
  CHECK(cachalot_malloc(it.allocator, 0, exbibyte - 512, NULL, &block) == CACHALOT_ERROR_OUT_OF_MEMORY);
  CHECK(cachalot_malloc(it.allocator, 0, device.total_bytes + 1, NULL, &block) == CACHALOT_ERROR_OUT_OF_MEMORY);
  CHECK(block == &block);
  CHECK(strstr(cachalot_last_error(), "out of memory") != NULL);
  NEEDED(cachalot_malloc(it.allocator, 0, 0, NULL, &block));
  CHECK(block == NULL);
  scene_close(&it);
  return failures != 0;
}
