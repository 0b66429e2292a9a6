#!/usr/bin/env bash
# Runs every property test with many generated cases, optimised and with all assertions: a campaign, and no part of
# tests/run.
#
#   tests/properties.sh [CASES]      CASES: of each test; 5000 if left out. tests/run has 10 to 400.
#
# A failing case is shortened, and saved where every later run repeats it: tests/regressions, or the folder of the crate.
set -euo pipefail
cd "$(dirname "$0")/.."
export PROPTEST_CASES=${1:-5000}

modules=()
for file in $(grep -l 'proptest!' tests/tests/*.rs); do
  modules+=("$(basename "$file" .rs)::")
done
cargo test --locked --profile campaign -p cachalot-core -p cachalot-policies -p cachalot-planner -p cachalot-snapshot --lib
cargo test --locked --profile campaign -p cachalot-tests --test allocator --test planning -- "${modules[@]}"
