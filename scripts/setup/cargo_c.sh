#!/usr/bin/env bash
# Builds cargo-c, pinned, for the test that installs the library with it. Takes minutes the first time.
#
#   eval "$(scripts/setup/cargo_c.sh)" && cargo test -p cachalot --test all packaging::
set -euo pipefail
tools=$(cd "$(dirname "$0")/../.." && pwd)/.tools
version=0.10.24+cargo-0.98.0

if [ ! -x "$tools/cargo-c/$version/bin/cargo-cinstall" ]; then
  # It is run once a test: building it faster is worth more than a fast one.
  cargo install cargo-c --version "$version" --locked --root "$tools/cargo-c/$version" --target-dir "$tools/cargo-c/build" \
    --config profile.release.opt-level=0 --config profile.release.lto=false >&2
  rm -rf "$tools/cargo-c/build"
fi

echo "export PATH='$tools/cargo-c/$version/bin':\"\$PATH\""
