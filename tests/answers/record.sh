#!/usr/bin/env bash
# Records the fixtures on a machine with a GPU, PyTorch, torchvision, transformers, Lightning, Accelerate and PEFT: ten minutes.
#
#   tests/answers/record.sh OUT
#
# Leaves in OUT the snapshots of scenarios/, the peaks of scripts/, and the snapshots and peaks of models.py at three batches.
set -uo pipefail
out=$(realpath "$1")
cd "$(dirname "$0")"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 OMP_NUM_THREADS=4
mkdir -p "$out"/{scenarios,scripts,models}

each() { # NAME COMMAND...: runs in the background, and keeps what it printed
  local name=$1
  shift
  (timeout 240 "$@" >"$out/$name.log" 2>&1; echo "$? $name" >>"$out/status") &
  while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-7}" ]; do wait -n; done
}

# This one fills the card, so it runs alone.
each scenarios/oom_other python3 scenarios/oom_other.py "$out/scenarios/oom_other.pickle"
wait
for file in scenarios/*.py; do
  name=$(basename "$file" .py)
  case $name in common | oom_other) continue ;; esac
  each "scenarios/$name" python3 "$file" "$out/scenarios/$name.pickle"
done
for file in scripts/*.py; do
  each "scripts/$(basename "$file" .py)" python3 measure.py "$out/scripts/$(basename "$file" .py).json" "$file"
done
for model in resnet50 vgg16 densenet121 mobilenet_v3_large convnext_tiny vit_b_16 gpt2 opt qwen t5 bert distilbert; do
  for batch in 8 16 32; do
    each "models/$model.$batch" python3 models.py "$model" "$batch" "$out/models/$model.$batch.pickle" "$out/models/$model.$batch.json"
  done
done
wait
