#!/usr/bin/env bash
# Builds and runs every example that needs no GPU, on the emulated driver and the emulated runtime.
#
#   examples/emulated.sh PREFIX OUT
#
# PREFIX is where ffi/packaging/install.sh installed; OUT gets the programs. Fetches cuda.h and nvcc into .tools/ where they
# are missing, and says what is left out without them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)
prefix=${1:?usage: emulated.sh PREFIX OUT}
mkdir -p "${2:?usage: emulated.sh PREFIX OUT}"
out=$(cd "$2" && pwd)
cd "$root"

for tool in cuda_header nvcc; do
  eval "$(scripts/setup/$tool.sh)"
done
cargo build --locked -q -p cachalot-emulated-driver -p cachalot-emulated-runtime
"${CARGO_TARGET_DIR:-target}/debug/emulated-driver" install --runtime "$out/cuda"
export CUDA_RUNTIME=emulated CUDA_LIBRARIES=$out/cuda CUDA_INCLUDE=${CUDA_INCLUDE:-${CACHALOT_CUDA_H_DIR:-}}
"$here/build.sh" "$prefix" "$out"
export CACHALOT_LIBCUDA=$out/cuda/libcuda.so.1 LD_LIBRARY_PATH=$out/cuda CACHALOT_KERNELS=$out/libcachalot_host_kernels.so
"$here/run.sh" "$out"
