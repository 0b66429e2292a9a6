#!/usr/bin/env bash
# Builds what PyTorch's CUDA build needs besides the emulated driver and runtime: the few functions that only PyTorch calls.
#
#   tests/pytorch/emulated/build.sh SITE OUT      SITE: the packages of a Python with PyTorch
#
# OUT/cuda has the emulated driver and runtime already. Programs then run with LD_LIBRARY_PATH=OUT/driver and LD_PRELOAD=OUT/libtorch_on_emulated.so:OUT/cuda/libcudart.so.13.
set -euo pipefail
usage="usage: build.sh SITE OUT"
site=${1:?$usage} home=${2:?$usage}
sources=$(cd "$(dirname "$0")" && pwd)
headers=(-isystem "$site/nvidia/cu13/include" -isystem "$site/triton/backends/nvidia/include")

# The emulated runtime, with the functions that only PyTorch needs. Those that nobody calls answer "not supported".
cc -O1 -Wall -Wextra -Werror -c -fPIC "${headers[@]}" "$sources/runtime.c" -o "$home/runtime.o"
{
  nm -D --defined-only "$home/cuda/libcudart.so.13"
  nm --defined-only "$home/runtime.o"
} | awk '{ sub(/@.*/, "", $3); print $3 }' | sort -u >"$home/present"
for library in "$site"/torch/lib/*.so "$site"/nvidia/*/lib/*.so.*; do nm -D --undefined-only "$library"; done |
  sed -n 's/.* \(_*cuda[A-Za-z0-9_]*\)@libcudart.*/\1/p' | sort -u | comm -23 - "$home/present" >"$home/absent"
mapfile -t absent < <(sed 's/.*/-Wl,--defsym=&=not_emulated/' "$home/absent")
cc -shared "$home/runtime.o" "${absent[@]}" -o "$home/libtorch_on_emulated.so" -ldl

# The driver, behind a library with the function that only PyTorch needs. Two libraries need two names.
mkdir -p "$home/driver"
sed 's/libcuda\.so\.1/libcudb.so.1/g' "$home/cuda/libcuda.so.1" >"$home/driver/libcudb.so.1"
cc -shared -fPIC -Wall -Wextra -Werror "${headers[@]}" "$sources/driver.c" -Wl,-soname,libcuda.so.1 \
  -Wl,--no-as-needed -L"$home/driver" -l:libcudb.so.1 -Wl,-rpath,'$ORIGIN' -o "$home/driver/libcuda.so.1"
