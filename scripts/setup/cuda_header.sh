#!/usr/bin/env bash
# Fetches NVIDIA's cuda.h, the headers of NVTX and a libclang, pinned, for the tests that compare the bindings with the headers.
#
#   eval "$(scripts/setup/cuda_header.sh)" && cargo test -p cachalot-cuda --test all header::
set -euo pipefail
. "$(dirname "$0")/wheels.sh"

unpack_wheels cuda-header nvidia-cuda-runtime==13.0.96 nvidia-nvtx==13.0.85
unpack_wheels libclang libclang==18.1.1

echo "export CACHALOT_CUDA_H_DIR='$tools/cuda-header/nvidia/cu13/include'"
echo "export LIBCLANG_PATH='$tools/libclang/clang/native'"
