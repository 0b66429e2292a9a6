#!/usr/bin/env bash
# Runs the stress on every GPU of the machine at once, with the policies in turn: a campaign whose runs add up in a ledger.
#
#   stress/gpu/campaign.sh BIN SECONDS LEDGER [GPUS]
#
# BIN is `cachalot-stress`, built with --release and nvcc. GPUs are numbers such as `0,2`, all if left out. Each run is a line of the
# ledger (tests/ledger.sh), with the configuration, the seed, the requests and frees, the blocks that kernels checked, and the
# findings. A run that ends by a signal, or two minutes late, counts as a finding, and ends the turns of its process. The reports
# are next to the ledger, in LEDGER.runs/SECOND. The last line is the sum of this campaign. The exit status is 1 if there was a
# finding.
#
#   SLICE=30       seconds of a run, after which the next configuration has its turn
#   SHARERS=4      processes on each GPU. The threads of one process wait for each other in the driver
#   THREADS        threads of a process, by default the processors divided by all processes
#   OPTIONS        other options of each run
#   CONFIGS        configurations in turn, separated by spaces
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 3 ] || { sed -n '4s/^# *//p' "$0" >&2; exit 2; }
bin=$(realpath "$1")
seconds=$2
ledger=$3
gpus=${4:-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd, -)}
IFS=, read -ra gpus <<<"$gpus"

slice=${SLICE:-30}
sharers=${SHARERS:-4}
most=$(($(nproc) / (${#gpus[@]} * sharers)))
threads=${THREADS:-$((most > 1 ? most : 2))}
options=${OPTIONS:---streams 8 --batch 512 --blocks 8000 --max-mib 64 --tenants 4 --ranges 4 --disturb 20000 --round 100000}
read -ra configs <<<"${CONFIGS:-policy:stitched backend:native expandable_segments:True decisions:improved}"
if [ -z "${CACHALOT_MACHINE:-}" ]; then
  CACHALOT_MACHINE="$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader -i "${gpus[0]}" | sed 's/, /, driver /')"
fi
export CACHALOT_MACHINE
begin=$(date +%s)
runs=$ledger.runs/$begin
mkdir -p "$runs"
end=$((begin + seconds))

# Prints a number of a report, 0 without a report.
number() {
  local value
  value=$(sed -n "s/.*\"$2\":\([0-9]*\).*/\1/p" "$1")
  echo "${value:-0}"
}

# Runs the configurations in turn on a GPU until the time is over. Each process starts with another configuration.
turns() {
  local gpu=$1 sharer=$2 turn=0
  while :; do
    local left=$((end - $(date +%s) - 5))
    [ "$left" -ge 5 ] || return 0
    local config=${configs[$(((gpu + sharer + turn) % ${#configs[@]}))]}
    local seed=$((begin * 1000000 + gpu * 10000 + sharer * 100 + turn)) status=0
    local report=$runs/$seed.json
    local time=$((left < slice ? left : slice))
    # shellcheck disable=SC2086  # the options are words
    CUDA_VISIBLE_DEVICES=$gpu timeout -s ABRT $((time + 120)) "$bin" --json --seconds "$time" --seed "$seed" --sharers "$sharers" --threads "$threads" \
      --config "$config" $options >"$report" 2>"$runs/$seed.log" || status=$?
    if [ "$status" = 2 ]; then
      echo "no run on GPU $gpu: $(tail -n 1 "$runs/$seed.log")" >&2
      return 2
    fi
    local findings
    findings=$(number "$report" corruptions)
    [ "$status" = 0 ] || findings=$((findings > 1 ? findings : 1))
    "$here/../../tests/ledger.sh" "$ledger" "stress on a GPU" "$config" "$seed" "$(number "$report" seconds)" "$(number "$report" ops)" \
      "$(number "$report" verified_blocks)" "$(number "$report" faults)" "$findings"
    if [ "$status" != 0 ]; then
      echo "GPU $gpu, seed $seed, $config: status $status, see $runs/$seed.json and .log" >&2
      return 1
    fi
    turn=$((turn + 1))
  done
}

workers=()
for gpu in "${gpus[@]}"; do
  for ((sharer = 0; sharer < sharers; sharer++)); do
    turns "$gpu" "$sharer" &
    workers+=($!)
  done
done
failed=0
for worker in "${workers[@]}"; do
  wait "$worker" || failed=$((failed + 1))
done

sum() {
  local total=0 file
  for file in "$runs"/*.json; do
    total=$((total + $(number "$file" "$1")))
  done
  echo "$total"
}
took=$(($(date +%s) - begin + 1))
operations=$(sum ops)
echo "${#gpus[@]} GPUs, $sharers processes of $threads threads each, $took s: $operations operations, $((operations / took)) a second;" \
  "$(sum verified_blocks) blocks checked by kernels; $(sum disturbances) disturbances, $(sum parks) parks, $(sum ranges) ranges," \
  "$(sum guests) streams that came and went, $(sum replays) runs of graphs; $(sum corruptions) findings in whole runs, $failed processes that ended early"
[ "$failed" = 0 ]
