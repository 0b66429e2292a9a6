#!/usr/bin/env bash
# Measures pinned memory of the host, on a machine with a GPU, 64 GiB of memory, a C++ compiler and CUDA's headers, for
# tests/results/pinned.md: three minutes.
#
#   cargo build --release -p cachalot-library      # here or on another machine
#   benches/gpu/pinned.sh OUT [FOLDER OF libcachalot.so]
#
# CACHALOT_COMMIT names the commit if there is no git, CUDA the folder of the toolkit (default: /usr/local/cuda).
set -euo pipefail
out=$(readlink -f "${1:?usage: pinned.sh OUT [FOLDER]}")
root=$(cd "$(dirname "$0")/../.." && pwd)
library=$(readlink -f "${2:-$root/target/release}")
cd "$root"
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cuda=${CUDA:-/usr/local/cuda}
g++ -O2 -std=c++20 -I include -I "$cuda/include" benches/gpu/pinned.cpp -o "$work/pinned" -L "$library" -lcachalot \
  -Wl,-rpath,"$library" -L "$cuda/lib64/stubs" -lcuda -lpthread
{
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors"
  date -u +%Y-%m-%d
  echo "${CACHALOT_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}"
  cat /sys/kernel/mm/transparent_hugepage/enabled
} >"$out/machine.txt"
# Each in its own process, and in turns, since the speed of a virtual machine changes.
: >"$out/pinned.txt"
for _ in 1 2 3; do
  for what in "ready 16" "copy 1024" pair behind; do
    # shellcheck disable=SC2086
    "$work/pinned" $what >>"$out/pinned.txt"
  done
done
for name in images text chunks mixed audio layers; do
  "$work/pinned" trace "$name" 8192 >>"$out/pinned.txt"
done
python3 benches/gpu/pinned_table.py "$out"
