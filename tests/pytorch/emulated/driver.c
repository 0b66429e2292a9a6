/*
 * A libcuda.so.1 in front of the emulated driver, with the one function that PyTorch looks up there and that the emulated
 * driver lacks. Its other functions are those of the library behind it.
 */
#include <cuda.h>

/* PyTorch asks before it touches a device that may be unused. Every emulated device may be used. */
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
  (void)device;
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
