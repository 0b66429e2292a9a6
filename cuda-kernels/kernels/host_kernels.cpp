// Host functions for the emulated driver: c++ -std=c++17 -O2 -shared -fPIC -o libcachalot_host_kernels.so host_kernels.cpp
#include "kernels.h"
