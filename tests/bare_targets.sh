#!/usr/bin/env bash
# Checks the core for machines without an operating system, and that a target without 64-bit atomics is refused in a sentence.
#
#   tests/bare_targets.sh
#
# Installs the targets by rustup where they are missing, or says in one line that the check was skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

bare=x86_64-unknown-none
narrow=thumbv7em-none-eabihf
if ! command -v rustup >/dev/null || ! rustup target add "$bare" "$narrow" >/dev/null 2>&1; then
  echo "skipped: the core on bare machines (rustup cannot install $bare and $narrow)"
  exit 0
fi
check() {
  cargo check --quiet --locked -p cachalot-core --no-default-features --target-dir target/bare "$@"
}
check --target "$bare"
check --target "$bare" --features alloc
if said=$(check --target "$narrow" 2>&1); then
  echo "tests/bare_targets.sh: $narrow builds: say so in the documentation of the core" >&2
  exit 1
fi
if ! grep -q 'cachalot-core needs atomic operations on 64 bits' <<<"$said"; then
  echo "tests/bare_targets.sh: $narrow is refused without the sentence: $said" >&2
  exit 1
fi
echo "checked: $bare; $narrow is refused"
