#!/usr/bin/env bash
# Installs the wheel beside a PyTorch in a clean root, and runs programs there: without a compiler, without a HOME, as a user who may
# write nothing.
#
#   tests/pytorch/clean.sh WHEEL VERSION      VERSION: such as 2.11, from the Python package index (5 GB, which are removed)
#
# Prints rows: what was done, what came of it, and the seconds. PyTorch 2.11 and later run on the wheel's emulated driver; to older ones,
# whose CUDA is not emulated, there is no GPU.
set -euo pipefail
usage="usage: clean.sh WHEEL VERSION"
wheel=$(readlink -f "${1:?$usage}")
version=${2:?$usage}
cd "$(dirname "$0")/../.."
. tests/clean_root.sh
mkdir -p target/ways
home=$(mktemp -d -p "$PWD/target/ways" torch-XXXXXX)
trap 'rm -rf "$home"' EXIT
mkdir "$home"/{python,emulated}
chmod 755 "$home"

# here SCRIPT: a clean root with the environment of the test.
here() { clean python3-venv "$1" "$home/python:/python" "$home/emulated:/emulated" "$PWD/tests/pytorch:/tests" "$(dirname "$wheel"):/wheel"; }
here "python3 -m venv /python && /python/bin/pip install --quiet --no-compile 'torch==$version.*' numpy"
site=$home/python/lib/python3.11/site-packages

emulated=''
if [ -d "$site/nvidia/cu13" ]; then
  unzip -q -j "$wheel" '*/emulated/*' -d "$home/emulated/cuda"
  tests/pytorch/emulated/build.sh "$site" "$home/emulated"
  emulated='LD_LIBRARY_PATH=/emulated/driver LD_PRELOAD=/emulated/libtorch_on_emulated.so:/emulated/cuda/libcudart.so.13'
  emulated+=' CACHALOT_LIBCUDA=/emulated/driver/libcuda.so.1 CACHALOT_EMU_MEMORY=4294967296 CACHALOT_EMU_DEVICES=1'
fi
here "
  run() { setpriv --reuid=nobody --regid=nogroup --clear-groups env $emulated PATH=/python/bin PYTHONDONTWRITEBYTECODE=1 \"\$@\"; }
  cd /tmp
  began=\$(date +%s.%N)
  pip() { /python/bin/pip \"\$@\"; }
  pip install --quiet --no-index /wheel/${wheel##*/}
  installed=\$(date +%s.%N)
  CACHALOT=1 run python /tests/first.py
  ended=\$(date +%s.%N)
  echo \"\$began \$installed \$ended\" | awk '{ printf \"pip install, s|%.1f\nprogram, s|%.1f\n\", \$2 - \$1, \$3 - \$2 }'
  for _ in 1 2 3 4 5; do run python /tests/enable_alone.py; done
  # A disk with no room.
  mkdir /full
  mount -t tmpfs -o size=4k,mode=1777 tmpfs /full
  run /bin/sh -c '/usr/bin/head -c 8192 /dev/zero >/full/file' 2>/dev/null || true
  CACHALOT=1 HOME=/full TMPDIR=/full CACHALOT_CACHE=/full/cache run python /tests/first.py
  run python -m cachalot_gpu doctor || true
"
