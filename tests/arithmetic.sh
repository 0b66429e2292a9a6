#!/usr/bin/env bash
# Proves the arithmetic of the core up to 2^64 with z3, and runs every size below 2^32: a campaign of minutes.
#
#   tests/arithmetic.sh            the proofs, then the sizes
#   tests/arithmetic.sh proofs     the proofs alone
#   tests/arithmetic.sh sizes      the sizes alone
#
# tests/results/exhaustive.md has the results.
set -euo pipefail
cd "$(dirname "$0")/.."
part=${1:-all}

cargo build --locked --release -q -p cachalot-arithmetic
binary=${CARGO_TARGET_DIR:-target}/release/cachalot-arithmetic
if [ "$part" != sizes ]; then
  eval "$(scripts/setup/z3.sh)"
  PYTHONPATH=$CACHALOT_Z3 python3 tests/arithmetic/proofs.py "$binary"
fi
if [ "$part" != proofs ]; then
  "$binary" sweep
fi
