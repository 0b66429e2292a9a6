#!/usr/bin/env bash
# Builds the kernels for hosts in other languages than Rust:
#
#   cuda-kernels/kernels/build.sh FOLDER
#
# makes FOLDER/libcachalot_host_kernels.so for the emulated driver, and with nvcc also FOLDER/kernels.fatbin for GPUs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: build.sh FOLDER}
mkdir -p "$out"

"${CXX:-c++}" -std=c++17 -O2 -shared -fPIC -o "$out/libcachalot_host_kernels.so" "$here/host_kernels.cpp"
echo "$out/libcachalot_host_kernels.so"

nvcc=${NVCC:-$(command -v nvcc || true)}
if [ -z "$nvcc" ]; then
  echo "skipped: kernels.fatbin (no nvcc; set NVCC)" >&2
  exit 0
fi
"$nvcc" -std=c++17 -O2 -fatbin \
  -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -gencode arch=compute_80,code=compute_80 \
  -o "$out/kernels.fatbin" "$here/kernels.cu"
echo "$out/kernels.fatbin"
