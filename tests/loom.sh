#!/usr/bin/env bash
# Explores what threads share without a lock, in every order that the memory model allows: the tests of the core and of the gate
# that loom runs.
#
#   tests/loom.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# explore PREEMPTIONS CRATE [TEST]: runs the tests of a crate. The flag is for the crate alone: by RUSTFLAGS, everything that the crate
# uses would be compiled once more. Optimised, because a model has a stack of 32 KiB, and otherwise a table of 28 KiB goes over it.
explore() {
  local built
  built=$(cargo rustc --locked --message-format=json-render-diagnostics -p "$2" --lib --profile test -- --cfg loom -C opt-level=2)
  LOOM_MAX_PREEMPTIONS=$1 "$(sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' <<<"$built")" "${@:3}"
}
explore 2 cachalot-core loom
explore 3 cachalot-gate
