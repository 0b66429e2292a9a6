#!/usr/bin/env bash
# Runs random programs over every function of the C interface, on the emulated driver, optimised and with all assertions:
# a campaign, and no part of tests/run.
#
#   tests/abi_fuzz.sh [OPERATIONS] [SEED]      OPERATIONS: 5,300,000 if left out, an hour on two cores. SEED: the first, 1.
#
# The last line has the counts. Each finding is printed with its case, a line of JSON: tests/abi-fuzz/README.md. LEDGER names a ledger
# (tests/ledger.sh) that gets a line.
set -euo pipefail
cd "$(dirname "$0")/.."
operations=${1:-5300000}
seed=${2:-1}
each=7000
cargo build --locked --profile campaign -p cachalot-emulated-driver -p cachalot-abi-fuzz
seeds=$(((operations + each - 1) / each))
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
target/campaign/cachalot-abi-fuzz campaign --seed "$seed" --seeds "$seeds" --ops "$each" --jobs "$(nproc)" --calls |
  tee "$log" || status=$?
if [ -n "${LEDGER:-}" ]; then
  number() { tail -n 1 "$log" | sed -n "s/.*[ :]\([0-9]\+\) $1.*/\1/p"; }
  tests/ledger.sh "$LEDGER" "programs over the C interface" "$(number configurations) configurations" "$seed to $((seed + seeds - 1))" \
    $SECONDS "$(number operations)" "$(number "contents checked")" "$(number "cases with faults")" "$(number "with a finding")"
fi
exit "$status"
