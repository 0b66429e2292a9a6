#!/usr/bin/env bash
# Installs the wheel beside a PyTorch in a clean root, and runs programs there: without a compiler, without a HOME, as a user who may
# write nothing.
#
#   tests/pytorch/clean.sh WHEEL VERSION      VERSION: such as 2.11, from the Python package index (5 GB, which are removed)
#
# ENVIRONMENT names a virtual environment of Debian's Python with that PyTorch, in place of the index. The wheel goes into it.
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
chmod 755 "$home"
python=${ENVIRONMENT:-$home/python}
mkdir -p "$python"

# here SCRIPT: a clean root with the environment of the test.
here() { clean python3-venv "$1" "$python:/python" "$PWD/tests/pytorch:/tests" "$(dirname "$wheel"):/wheel"; }
[ -n "${ENVIRONMENT:-}" ] || here "python3 -m venv /python && /python/bin/pip install --quiet --no-compile 'torch==$version.*' numpy"

emulated=''
if [ -d "$python/lib/python3.11/site-packages/nvidia/cu13" ]; then
  emulated='cachalot emulate --devices 1 --memory 4GiB --'
fi
here "
  run() { setpriv --reuid=nobody --regid=nogroup --clear-groups env PATH=/python/bin PYTHONDONTWRITEBYTECODE=1 $emulated \"\$@\"; }
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
