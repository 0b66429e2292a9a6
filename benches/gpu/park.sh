#!/usr/bin/env bash
# Measures parking on a machine with a GPU of 80 GiB and PyTorch, for tests/results/park.md: five minutes.
#
#   pip install --target SITE ./python
#   SAVER=FOLDER CUMEM=FILE benches/gpu/park.sh OUT SITE [ALLOCATOR...]
#
# OUT gets the tables of the page as CSV, park.jsonl with all figures, and log.txt. The allocators, by default all of them, each
# in its own process: plain (copies to pinned memory), caching and stitched (cachalot), saver-torch and saver-preload
# (torch_memory_saver), cumem (vLLM's). SAVER is the folder with the unpacked wheel of torch_memory_saver, CUMEM vLLM's
# csrc/cumem_allocator.cpp next to its header. What is not given is skipped in one line. An allocator that fails or takes
# too long is named, with what it has measured until then, and the others go on.
#
# WEIGHTS, CACHE (GiB), TENSORS and CYCLES make the load smaller (16, 24, 2000, 100). All allocators together end within
# LIMIT_S seconds (default 300), each within EACH_S (default 75). CACHALOT_COMMIT is the commit if there is no git.
set -uo pipefail
out=$(readlink -f "${1:?usage: park.sh OUT SITE [ALLOCATOR...]}")
site=$(readlink -f "${2:?usage: park.sh OUT SITE [ALLOCATOR...]}")
allocators=("${@:3}")
[ ${#allocators[@]} -gt 0 ] || allocators=(plain caching stitched saver-torch saver-preload cumem)
saver=${SAVER:+$(readlink -f "$SAVER")}
export CUMEM=${CUMEM:+$(readlink -f "$CUMEM")}
cd "$(dirname "$0")" || exit 2
mkdir -p "$out"
limit=${LIMIT_S:-300}
load=(--weights "${WEIGHTS:-16}" --cache "${CACHE:-24}" --tensors "${TENSORS:-2000}" --cycles "${CYCLES:-100}")
export PYTHONPATH=$site${saver:+:$saver} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF
failed=0

# Runs a command for some seconds at most, and not beyond the limit of all.
attempt() {
  local name=$1 seconds=$2 left=$((limit - SECONDS)) begin=$SECONDS status=0
  shift 2
  [ "$seconds" -le "$left" ] || seconds=$left
  echo "== $name" >>"$out/log.txt"
  if [ "$seconds" -lt 1 ]; then
    status=124
  else
    timeout --kill-after=5 "$seconds" "$@" >>"$out/log.txt" 2>&1 || status=$?
  fi
  if [ "$status" = 0 ]; then
    echo "$name: $((SECONDS - begin)) s" >&2
  else
    failed=1
    echo "FAILED: $name (exit status $status after $((SECONDS - begin)) s; see log.txt)" >&2
  fi
}

: >"$out/log.txt"
: >"$out/park.jsonl"
{
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1
  echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors"
  date -u +%Y-%m-%d
  echo "${CACHALOT_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}"
  python3 -c 'import torch; print(torch.__version__)' 2>/dev/null || echo none
  python3 -c 'import importlib.metadata as m; print(m.version("torch_memory_saver"))' 2>/dev/null || echo none
  echo "${CUMEM_VERSION:-unknown}"
  echo "${load[*]}"
} >"$out/machine.txt"

# The library under PyTorch is built at the first use, which is no part of a measurement.
attempt build 120 python3 -c 'import torch, cachalot_gpu.torch as own; own.enable(); torch.zeros(1, device="cuda")'
for allocator in "${allocators[@]}"; do
  preload=()
  if [ "$allocator" = saver-preload ] && [ -n "$saver" ]; then
    major=$(python3 -c 'import torch; print(torch.version.cuda.split(".")[0])')
    # PyTorch's own runtime, which the preloaded library needs before PyTorch is there.
    packages=$(python3 -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent.parent)')
    runtime=$(dirname "$(find "$packages/nvidia" -name "libcudart.so.$major" -print -quit)")
    preload=(env "LD_PRELOAD=$saver/torch_memory_saver_hook_mode_preload_cu$major.abi3.so"
      "LD_LIBRARY_PATH=$runtime${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
  fi
  attempt "$allocator" "${EACH_S:-75}" "${preload[@]}" python3 park.py "$allocator" "$out/park.jsonl" "${load[@]}"
done
grep '^skipped' "$out/log.txt" >&2
limit=$((limit + 30))
attempt table 30 python3 park_table.py "$out"
[ "$failed" = 0 ]
