#!/usr/bin/env bash
# Changes the code in small ways, one change at a time, and lists the changes that no test notices: a campaign of hours.
#
#   tests/mutants.sh CRATE [K/N]     CRATE: cachalot-core, cachalot-snapshot or cachalot-cuda
#                                    K/N: a sample, every N-th change from the K-th on; all changes if left out
#
# Each change runs the tests of its own crate, of the core the unit tests only. A change that survives is then judged by hand: with
# the tests of the repository, or as a change without effect. tests/results/mutants.md has the judgements.
set -euo pipefail
cd "$(dirname "$0")/.."
crate=${1:?usage: mutants.sh CRATE [K/N]}
sample=${2:-0/1}

if ! cargo mutants --version >/dev/null 2>&1; then
  echo "skipped: mutants (cargo install --locked cargo-mutants)"
  exit 0
fi
tests=()
[ "$crate" != cachalot-core ] || tests=(--lib)
export PROPTEST_CASES=${PROPTEST_CASES:-8}
cargo mutants --package "$crate" --sharding round-robin --shard "$sample" --baseline skip --timeout 150 --build-timeout 400 \
  --output target/mutants -- "${tests[@]}"
