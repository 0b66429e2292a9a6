#!/usr/bin/env bash
# Everything that is to be shown with PyTorch, on a machine with a GPU: about ten minutes.
#
#   pip install --target SITE ./python        # or a wheel of python/release.sh, for a machine with an older glibc
#   tests/pytorch/run.sh SITE OUT
set -uo pipefail
site=$(readlink -f "${1:?usage: run.sh SITE OUT}")
out=$(readlink -f "${2:?usage: run.sh SITE OUT}")
cd "$(dirname "$0")"
# Requests that fail on purpose leave no files.
export CACHALOT_RECORDER=files:0
export PYTHONPATH=$site PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
failed=0

show() {
  echo "== $1"
  timeout "$2" python3 "${@:3}" >"$out/$1.txt" 2>&1 || { failed=1; echo "FAILED: $1"; }
  tail -n 3 "$out/$1.txt"
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
show allocator 120 -m unittest -v test_memory test_settings test_streams test_graphs test_snapshots
CACHALOT_TEST=native show allocator-of-pytorch 120 -m unittest -v test_memory test_settings test_streams test_graphs test_snapshots
CACHALOT_TORCH_PLUGIN=1 show allocator-as-a-plug-in 120 -m unittest -v test_memory test_settings test_streams test_graphs test_snapshots
show whole 600 whole.py "$out/cases.csv"
show pool 60 test_pool.py
show parking 240 test_parking.py
show loans 120 test_loans.py
show memory-saver 120 test_memory_saver.py
show rlhf 180 rlhf.py "$out/rlhf.csv"
show ranges 60 test_ranges.py
show paged 60 test_paged.py
CACHALOT_TEST=native show ranges-beside-pytorch 60 test_ranges.py
show pinned 120 test_pinned.py
CACHALOT_TEST=native show pinned-of-pytorch 120 test_pinned.py
show pinned-measured 400 test_pinned.py --measure "$out/pinned.csv"
show golden 60 golden.py "$out/golden.csv"
show bench 280 bench.py "$out"
show compiled 120 compiled.py "$out/compiled.md"
exit $failed
