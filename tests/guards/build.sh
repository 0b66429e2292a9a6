#!/usr/bin/env bash
# Builds the programs with planted memory errors into a folder that runs on any machine with a GPU.
#
#   eval "$(scripts/setup/nvcc.sh)"; eval "$(scripts/setup/sanitizer.sh)"      # the second is optional
#   cargo build --release -p cachalot-library
#   tests/guards/build.sh OUT [FOLDER OF libcachalot.a]
#
# With CUDA_RUNTIME=emulated they are built for the emulated runtime, whose folder CUDA_LIBRARIES names.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:?usage: build.sh OUT [FOLDER]}
library=${2:-$root/target/release}
mkdir -p "$out"
static=("$library/libcachalot.a" -lutil -lrt -lpthread -lm -ldl -lgcc_s)
flags=(-std=c++17 -O2 -I "$root/include" -I "$root/emulated-runtime/include")
source=$root/tests/guards/defects.cu
if [ "${CUDA_RUNTIME:-}" = emulated ]; then
  toolkit=$(cd "$(dirname "${NVCC:?names the compiler}")/../include" && pwd)
  "$NVCC" "${flags[@]}" -arch=sm_80 -cudart none "$source" -L "${CUDA_LIBRARIES:?names a folder}" -lcudart "${static[@]}" \
    -o "$out/defects"
  "${CXX:-c++}" "${flags[@]}" -x c++ -shared -fPIC -isystem "$toolkit" "$source" -o "$out/defects.kernels.so"
else
  "${NVCC:?names the compiler}" "${flags[@]}" -lineinfo -gencode arch=compute_80,code=sm_80 \
    -gencode arch=compute_90,code=sm_90 "$source" "${static[@]}" -o "$out/defects"
fi
cp "$root/tests/guards/run.sh" "$root/tests/guards/table.py" "$out/"
if [ -n "${SANITIZER_HOME:-}" ]; then
  mkdir -p "$out/sanitizer"
  find "$SANITIZER_HOME" -maxdepth 1 -type f -exec cp {} "$out/sanitizer/" \;
fi
