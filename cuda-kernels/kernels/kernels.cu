// The device's side: nvcc -fatbin kernels.cu
#include "kernels.h"
