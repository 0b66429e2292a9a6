#!/usr/bin/env bash
# Measures blocks that two streams use, on a machine with a GPU, a C++ compiler, CUDA's headers and PyTorch, for
# tests/results/streams.md: one minute.
#
#   cargo build --release -p cachalot-library      # here or on another machine
#   benches/gpu/streams.sh OUT [FOLDER OF libcachalot.so]
#
# CACHALOT_COMMIT names the commit if there is no git, CUDA the folder of the toolkit (default: /usr/local/cuda).
set -euo pipefail
out=$(readlink -f "${1:?usage: streams.sh OUT [FOLDER]}")
root=$(cd "$(dirname "$0")/../.." && pwd)
library=$(readlink -f "${2:-$root/target/release}")
cd "$root"
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cuda=${CUDA:-/usr/local/cuda}
torch=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))')
common=(-O2 -std=c++20 -I include -I "$cuda/include" benches/gpu/streams.cpp)
link=(-L "$library" -lcachalot -Wl,-rpath,"$library" -L "$cuda/lib64" -lcudart -lpthread)
g++ "${common[@]}" -o "$work/ours" "${link[@]}" &
g++ "${common[@]}" -DWITH_TORCH -I "$torch/include" -o "$work/torch" -L "$torch/lib" -Wl,--no-as-needed -ltorch_cuda \
  -ltorch_cpu -lc10_cuda -lc10 -Wl,-rpath,"$torch/lib" -Wl,--allow-shlib-undefined "${link[@]}"
wait
{
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader -i 0
  echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors"
  date -u +%Y-%m-%d
  echo "${CACHALOT_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}"
  python3 -c 'import torch; print(torch.__version__)'
} >"$out/machine.txt"
# In turns, since the speed of a virtual machine changes.
: >"$out/streams.txt"
for _ in 1 2 3 4 5 6 7; do
  "$work/torch" 1 >>"$out/streams.txt"
  "$work/ours" 1 policy:caching policy:caching,parity:False policy:stitched >>"$out/streams.txt"
done
python3 benches/gpu/streams_table.py "$out"
