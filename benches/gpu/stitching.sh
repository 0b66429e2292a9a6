#!/usr/bin/env bash
# Measures the stitched policy on a machine with a GPU, nvcc and PyTorch, for tests/results/stitching_gpu.md: six minutes.
#
#   eval "$(scripts/setup/nvcc.sh)" && cargo build --release -p cachalot-stress      # here or on another machine
#   pip install --target SITE ./python
#   benches/gpu/stitching.sh OUT SITE [STEP...]
#
# OUT gets the tables of the page as CSV, and the output of each step. The steps, by default all of them:
#   no-wait          calls while a kernel runs                                                busy.csv
#   recorded         recorded programs with real memory, under cachalot and cudaMallocAsync   recorded.csv
#   stress           kernels write and check every block while pages move                     stress.txt
#   pytorch          the programs of tests/pytorch/bench.py                                   a table for each
#   recorded-torch   recorded programs under PyTorch's own allocator                          recorded.csv
# A step that fails is named, and the others go on. All steps together end within LIMIT_S seconds (default 400).
#
# CACHALOT_STRESS names the stress program (default: target/release/cachalot-stress), CACHALOT_COMMIT the commit if
# there is no git, NVCC the compiler, and CACHALOT_ARCH the GPU's architecture (default: sm_90).
set -uo pipefail
out=$(readlink -f "${1:?usage: stitching.sh OUT SITE [STEP...]}")
site=$(readlink -f "${2:?usage: stitching.sh OUT SITE [STEP...]}")
steps=" ${*:3} "
[ "$steps" != "  " ] || steps=" no-wait recorded stress pytorch recorded-torch "
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 2
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
limit=${LIMIT_S:-400}
passes=3
export PYTHONPATH=$site PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

# The records of programs in PyTorch's default configuration: all but those with another one in their name.
records=()
for record in "$root"/tests/traces/*.csv.gz; do
  case $record in
    *__graph.csv.gz) records+=("$record") ;;
    *__*) ;;
    *) records+=("$record") ;;
  esac
done

wanted() { [[ $steps == *" $1 "* ]]; }

# Runs a command for some seconds at most, and not beyond the limit of all. What it prints goes to the file descriptor 1
# of the caller, its errors to log.txt.
attempt() {
  local name=$1 seconds=$2 left=$((limit - SECONDS)) begin=$SECONDS status=0
  shift 2
  [ "$seconds" -le "$left" ] || seconds=$left
  echo "== $name: $*" >>"$out/log.txt"
  if [ "$seconds" -lt 1 ]; then
    status=124
  else
    timeout --kill-after=5 "$seconds" "$@" 2>>"$out/log.txt" || status=$?
  fi
  if [ "$status" = 0 ]; then
    echo "$name: $((SECONDS - begin)) s" >&2
  else
    touch "$work/failed"
    echo "FAILED: $name (exit status $status after $((SECONDS - begin)) s; see log.txt)" >&2
  fi
  return "$status"
}

# Builds a program of this folder over the library of the package.
build() {
  local library=("$site"/cachalot_gpu/lib/libcachalot.so*)
  attempt "build $1" 120 "${NVCC:-nvcc}" -O2 -std=c++17 "-arch=${CACHALOT_ARCH:-sm_90}" -I include \
    -I emulated-runtime/include "benches/gpu/$1.cu" -o "$work/$1" -L "${library[0]%/*}" "-l:${library[0]##*/}" \
    -Xlinker -rpath -Xlinker "${library[0]%/*}" >>"$out/log.txt"
}

# The lines of CSV without the header, which recorded.csv has already.
add_lines() { grep -v '^program,' >>"$out/recorded.csv" || true; }

: >"$out/log.txt"
{
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo "no nvidia-smi"
  echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors"
  date -u +%Y-%m-%d
  echo "${CACHALOT_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}"
  "${NVCC:-nvcc}" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p'
  python3 -c 'import torch; print(torch.__version__)' 2>/dev/null || echo none
} >"$out/machine.txt"

for program in recorded no_wait; do
  if wanted "${program/_/-}"; then
    build "$program" &
  fi
done
wait

if wanted no-wait; then
  attempt no-wait 30 "$work/no_wait" >"$out/busy.csv"
fi
if wanted recorded || wanted recorded-torch; then
  echo "program,allocator,pass,requests,live_bytes,driver_bytes,own_bytes,call_us,slow_us,slow_calls,longest_us,\
longest_bytes,moved_bytes" >"$out/recorded.csv"
fi
if wanted recorded; then
  for allocator in policy:stitched policy:caching policy:caching,expandable_segments:True cudaMallocAsync; do
    attempt "recorded, $allocator" 60 "$work/recorded" "$allocator" "$passes" "${records[@]}" | add_lines
  done
fi
if wanted stress; then
  attempt stress 110 "${CACHALOT_STRESS:-$root/target/release/cachalot-stress}" --seed 16 --ops 12000000 --seconds 88 \
    --threads 16 --streams 16 --max-mib 64 --config policy:stitched,slack:0 >"$out/stress.txt"
fi
if wanted pytorch; then
  (cd tests/pytorch && attempt pytorch 170 python3 bench.py --only "torch;cachalot, swap;cachalot, swap, stitched" \
    "$out") >>"$out/log.txt"
fi
if wanted recorded-torch; then
  for config in "" expandable_segments:True; do
    PYTORCH_CUDA_ALLOC_CONF=$config attempt "recorded-torch, ${config:-default}" 60 \
      python3 benches/gpu/recorded_torch.py "$passes" "${records[@]}" | add_lines
  done
fi
limit=$((limit + 30))
attempt table 30 python3 benches/gpu/stitching_table.py "$out"
[ ! -e "$work/failed" ]
