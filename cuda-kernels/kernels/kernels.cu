// Device kernels: nvcc -fatbin kernels.cu
#include "kernels.h"
