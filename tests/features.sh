#!/usr/bin/env bash
# Runs clippy over every set of features, and over every published crate alone, with warnings as errors.
#
#   tests/features.sh          # all sets: each night
#   tests/features.sh few      # a set with each feature off: before every change
set -euo pipefail
cd "$(dirname "$0")/.."

# What `cargo hack check --feature-powerset` would run.
sets=(
  "cachalot-core --no-default-features"
  "cachalot-core --no-default-features --features paranoid"
  "cachalot-core --no-default-features --features alloc"
  "cachalot-core --no-default-features --features alloc,paranoid"
  "cachalot-cuda"
  "cachalot-cuda --features linked"
  "cachalot-cuda --features log"
  "cachalot"
  "cachalot --no-default-features"
  "cachalot --no-default-features --features tune"
  "cachalot --no-default-features --features metrics"
  "cachalot --no-default-features --features policies"
  "cachalot --features linked"
  "cachalot --features c"
  "cachalot-library"
  "cachalot-library --features linked,capi"
  "cachalot-planner --no-default-features"
  "cachalot-planner"
  "cachalot-planner --features serde"
  "cachalot-planner --no-default-features --features serde"
  "cachalot-cli --no-default-features"
  # These have none, and are checked alone: in a whole build, other crates switch features of their dependencies on.
  "cachalot-atomic-file"
  "cachalot-cuda-abi"
  "cachalot-snapshot"
  "cachalot-snapshot --no-default-features"
  "cachalot-replay"
  "cachalot-policies"
  "cachalot-tuner"
  "cachalot-tuner --features serde"
  "cachalot-gate"
  "cachalot-run"
  "cachalot-front"
  "cachalot-cli"
)

# A set that is not listed would never be built.
features=$(sed -n '/^\[features\]/,/^\[/s/^\([a-z]*\) = .*/\1/p' $(git ls-files '*/Cargo.toml') | sort | tr '\n' ' ')
if [ "$features" != "alloc c capi default default default default default files linked linked linked log metrics paranoid policies serde serde sqlite std tune " ]; then
  echo "tests/features.sh: the features are now $features: list their sets" >&2
  exit 1
fi

# The sets of the few leave out what is nearly another set, or is built by another step of `.ci/run`.
few=(
  "cachalot-core --no-default-features"
  "cachalot-core --no-default-features --features alloc"
  "cachalot --no-default-features"
  "cachalot-library --features linked,capi"
  "cachalot-planner --no-default-features"
  "cachalot-snapshot --no-default-features"
  "cachalot-cli --no-default-features"
)
if [ "${1:-all}" = few ]; then
  for set in "${few[@]}"; do
    # A set that is no longer listed above is a mistake.
    printf '%s\n' "${sets[@]}" | grep -qxF -- "$set" || { echo "tests/features.sh: not among all sets: $set" >&2; exit 1; }
  done
  sets=("${few[@]}")
fi

for set in "${sets[@]}"; do
  # shellcheck disable=SC2086 # a set is arguments
  if ! cargo clippy --quiet --locked -p $set -- -D warnings; then
    echo "tests/features.sh: does not build: $set" >&2
    exit 1
  fi
done
echo "built: ${#sets[@]} sets of features"
