#!/usr/bin/env bash
# Builds every example over an installed cachalot that can be built here, and says what is left out.
#
#   examples/build.sh PREFIX OUT
#
# PREFIX is where ffi/packaging/install.sh installed; OUT gets the programs and the kernels. The hosts of the driver need cuda.h,
# whose folder CUDA_INCLUDE names if the compiler does not find it, and libcuda.so, whose folder CUDA_LIBRARIES names likewise. The
# hosts of the CUDA runtime need nvcc, on the path or named by NVCC. With CUDA_RUNTIME=emulated they are built for the emulated
# runtime, which is in CUDA_LIBRARIES.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)
prefix=${1:?usage: build.sh PREFIX OUT}
out=${2:?usage: build.sh PREFIX OUT}
mkdir -p "$out"

left_out() {
  echo "left out: $1" >&2
}

export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
# One static library, so that a program can be taken to another machine.
read -ra libraries <<<"$(pkg-config --static --libs cachalot)"
read -ra flags <<<"$(pkg-config --cflags cachalot)"
flags+=(-O2 -Wall -Wextra -Wpedantic)

for host in cost plan; do
  "${CC:-cc}" -std=c11 "${flags[@]}" "$here/c/$host.c" "${libraries[@]}" -o "$out/$host"
done
"${CXX:-c++}" -std=c++17 "${flags[@]}" "$here/cpp/resources.cpp" "${libraries[@]}" -o "$out/resources"
# A library that PyTorch loads.
"${CXX:-c++}" -std=c++17 -shared -fPIC "${flags[@]}" "$here/torch/torch_minimal.cpp" "${libraries[@]}" -o "$out/torch_minimal.so"

cuda=(-I "$root/cuda-kernels/include" ${CUDA_INCLUDE:+-isystem "$CUDA_INCLUDE"})
driver=(${CUDA_LIBRARIES:+-L "$CUDA_LIBRARIES"} -lcuda)
try() {
  echo "$1" | "${CC:-cc}" -x c - "${@:2}" -o /dev/null 2>/dev/null
}
if ! try '#include <cuda.h>' -c "${cuda[@]}"; then
  left_out 'the hosts of the driver (no cuda.h: eval "$(scripts/setup/cuda_header.sh)", and name CACHALOT_CUDA_H_DIR in CUDA_INCLUDE)'
elif ! try 'int main(void) { return 0; }' "${driver[@]}"; then
  left_out 'the hosts of the driver (no libcuda.so: CUDA_LIBRARIES names the folder of one, or of the emulated driver)'
else
  for host in vector_add two_streams graph_capture multi_gpu own_context kv_cache paged_attention; do
    "${CC:-cc}" -std=c11 "${flags[@]}" "${cuda[@]}" "$here/c/$host.c" "${libraries[@]}" "${driver[@]}" -o "$out/$host"
  done
fi

nvcc=${NVCC:-$(command -v nvcc || true)}
static=("$prefix/lib/libcachalot.a" -lutil -lrt -lpthread -lm -ldl -lgcc_s)
runtime=(-std=c++17 -I "$prefix/include" -I "$root/emulated-runtime/include")
if [ -z "$nvcc" ]; then
  left_out 'the hosts of the CUDA runtime (no nvcc: eval "$(scripts/setup/nvcc.sh)", or set NVCC)'
elif [ "${CUDA_RUNTIME:-}" = emulated ]; then
  toolkit=$(cd "$(dirname "$nvcc")/../include" && pwd)
  emulated=(-L "${CUDA_LIBRARIES:?names the folder of the emulated runtime}" -lcudart)
  "$nvcc" "${runtime[@]}" -O2 -arch=sm_80 -cudart none "$here/cpp/runtime_streams.cu" "${emulated[@]}" "${static[@]}" -o "$out/runtime_streams"
  "${CXX:-c++}" "${runtime[@]}" -O2 -x c++ -shared -fPIC -isystem "$toolkit" "$here/cpp/runtime_streams.cu" -o "$out/runtime_streams.kernels.so"
  if [ -d "$toolkit/cccl/thrust" ]; then
    "${CXX:-c++}" "${runtime[@]}" -O2 -x c++ -DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP -isystem "$toolkit/cccl" \
      -isystem "$toolkit" "$here/cpp/thrust_system.cu" -x none "${emulated[@]}" "${static[@]}" -o "$out/thrust_system"
  else
    left_out 'thrust_system (no CCCL: eval "$(scripts/setup/cccl.sh)")'
  fi
  left_out 'thrust_vector and cub_reduce (their kernels need a GPU)'
else
  for host in thrust_vector cub_reduce runtime_streams thrust_system; do
    "$nvcc" "${runtime[@]}" -O2 -arch=sm_80 "$here/cpp/$host.cu" "${static[@]}" -o "$out/$host"
  done
fi
"$root/cuda-kernels/kernels/build.sh" "$out"
