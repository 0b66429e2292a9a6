#!/usr/bin/env bash
# Proves the arithmetic of the core up to 2^64 with z3, and runs every size below 2^32: a campaign of minutes.
#
#   tests/arithmetic.sh            the proofs, then the sizes
#   tests/arithmetic.sh proofs     the proofs alone
#   tests/arithmetic.sh sizes      the sizes alone
#
# Both print CSV, as in tests/results/arithmetic/. LEDGER names a ledger (tests/ledger.sh) that gets a line for each part.
set -euo pipefail
cd "$(dirname "$0")/.."
part=${1:-all}

cargo build --locked --release -q -p cachalot-arithmetic
binary=${CARGO_TARGET_DIR:-target}/release/cachalot-arithmetic
table=$(mktemp)
trap 'rm -f "$table"' EXIT

# Adds a line to the ledger: the kind, the claims or values, and those that are wrong.
add() {
  [ -z "${LEDGER:-}" ] || tests/ledger.sh "$LEDGER" "$1" "" "" $SECONDS "$2" "$2" 0 "$3"
}
failed=0
if [ "$part" != sizes ]; then
  eval "$(scripts/setup/z3.sh)"
  PYTHONPATH=$CACHALOT_Z3 python3 tests/arithmetic/proofs.py "$binary" | tee "$table" || failed=1
  add "proofs of the arithmetic" "$(grep -cE ',(yes|"?no: .*)$' "$table" || true)" "$(grep -cE ',"?no: ' "$table" || true)"
fi
if [ "$part" != proofs ]; then
  "$binary" sweep | tee "$table" || failed=1
  add "every size" $(sed 's/.*",//' "$table" | awk -F, 'NR > 1 { sizes += $1; wrong += $3 } END { printf "%.0f %.0f", sizes, wrong }')
fi
exit "$failed"
