#!/usr/bin/env bash
# Runs worlds: programs of several threads on the core, whose turns a seed decides (tests/worlds).
#
#   tests/worlds.sh [SECONDS [SEED]]     # for each of five kinds of worlds; default: 60 seconds, and a seed of the day
#
# With LEDGER, each kind adds a line to that file (tests/ledger.sh). A finding is printed with the command that repeats it.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
seed=${2:-$(date -u +%Y%m%d)0000}

cargo build --locked --release -q -p cachalot-worlds
worlds=${CARGO_TARGET_DIR:-target}/release/cachalot-worlds
status=0
for kind in "--threads 2" "--threads 4" "--threads 4 --faults" "--threads 8" "--threads 6 --faults"; do
  # shellcheck disable=SC2086 # a kind is arguments
  report=$("$worlds" --seconds "$seconds" --seed "$seed" $kind) || status=1
  echo "$kind: $report"
  if [ -n "${LEDGER:-}" ]; then
    read -r operations checks faults < <(sed -n 's/.*: \([0-9]*\) requests and frees, \([0-9]*\) checks, \([0-9]*\) failing.*/\1 \2 \3/p' <<<"$report")
    findings=$(grep -c ^FINDING <<<"$report" || true)
    tests/ledger.sh "$LEDGER" "worlds of threads" "${kind//--/}" "$seed" "$seconds" "$operations" "$checks" "$faults" "$findings"
  fi
done
exit $status
