#!/usr/bin/env bash
# Builds every example over an installed cachalot.
#
#   examples/build.sh PREFIX OUT
#
# PREFIX is where ffi/packaging/install.sh installed; OUT gets the programs and the kernels. Needs cuda.h, whose folder
# CUDA_INCLUDE names if the compiler does not find it, and libcuda.so, whose folder CUDA_LIBRARIES names likewise. With nvcc on the
# path (or NVCC) the hosts of the CUDA runtime and the kernels for GPUs are built too.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)
prefix=${1:?usage: build.sh PREFIX OUT}
out=${2:?usage: build.sh PREFIX OUT}
mkdir -p "$out"

export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
# One static library, so that a program can be taken to another machine.
read -ra libraries <<<"$(pkg-config --static --libs cachalot)"
read -ra flags <<<"$(pkg-config --cflags cachalot)"
flags+=(-O2 -Wall -Wextra -Wpedantic)
cuda=(-I "$root/cuda-kernels/include" ${CUDA_INCLUDE:+-isystem "$CUDA_INCLUDE"})
driver=(${CUDA_LIBRARIES:+-L "$CUDA_LIBRARIES"} -lcuda)

for host in vector_add two_streams graph_capture multi_gpu own_context; do
  "${CC:-cc}" -std=c11 "${flags[@]}" "${cuda[@]}" "$here/c/$host.c" "${libraries[@]}" "${driver[@]}" -o "$out/$host"
done
"${CC:-cc}" -std=c11 "${flags[@]}" "$here/c/cost.c" "${libraries[@]}" -o "$out/cost"
"${CXX:-c++}" -std=c++17 "${flags[@]}" "$here/cpp/resources.cpp" "${libraries[@]}" -o "$out/resources"
# A library that PyTorch loads.
"${CXX:-c++}" -std=c++17 -shared -fPIC "${flags[@]}" "$here/torch/torch_minimal.cpp" "${libraries[@]}" -o "$out/torch_minimal.so"

nvcc=${NVCC:-$(command -v nvcc || true)}
if [ -n "$nvcc" ]; then
  for host in thrust_vector cub_reduce runtime_streams thrust_system; do
    "$nvcc" -std=c++17 -O2 -arch=sm_80 -I "$prefix/include" -I "$root/emulated-runtime/include" "$here/cpp/$host.cu" \
      "$prefix/lib/libcachalot.a" \
      -lutil -lrt -lpthread -lm -ldl -lgcc_s -o "$out/$host"
  done
else
  echo "skipped: the hosts of the CUDA runtime (no nvcc; set NVCC)" >&2
fi
"$root/cuda-kernels/kernels/build.sh" "$out"
