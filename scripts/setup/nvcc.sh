#!/usr/bin/env bash
# Fetches NVIDIA's CUDA compiler and headers, pinned, for the kernels of the tests and the examples of the CUDA runtime. Needs a
# host C++ compiler.
#
#   eval "$(scripts/setup/nvcc.sh)" && cargo build -p cachalot-kernels
set -euo pipefail
. "$(dirname "$0")/wheels.sh"

unpack_wheels nvcc \
  nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85

home=$tools/nvcc/nvidia/cu13
# The packages do not have the names that the linker asks for.
[ -e "$home/lib64" ] || ln -s lib "$home/lib64"
[ -e "$home/lib/libcudart.so" ] || ln -s libcudart.so.13 "$home/lib/libcudart.so"

"$home/bin/nvcc" --version >&2
echo "export NVCC='$home/bin/nvcc'"
echo "export CUDA_HOME='$home'"
