#!/usr/bin/env bash
# Checks the published libraries with the oldest Rust version that Cargo.toml states; with --all, every crate of the workspace,
# which takes three minutes where nothing was built before.
#
#   tests/minimum_rust.sh [--all]
#
# Installs this toolchain by rustup where it is missing, or says in one line that the check was skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
if ! command -v rustup >/dev/null; then
  echo "skipped: the minimum Rust version $version (no rustup)"
  exit 0
fi
toolchain=$version.0
if ! rustup run "$toolchain" rustc --version >/dev/null 2>&1 &&
  ! rustup toolchain install "$toolchain" --profile minimal --no-self-update >/dev/null 2>&1; then
  echo "skipped: the minimum Rust version $version (rustup cannot install $toolchain)"
  exit 0
fi
# The compiler's own folder: the builds of two compilers would replace each other.
crates=(-p cachalot -p cachalot-core -p cachalot-cuda -p cachalot-cuda-abi -p cachalot-planner -p cachalot-snapshot -p cachalot-atomic-file
  -p cachalot-policies -p cachalot-tuner -p cachalot-cudarc)
if [ "${1:-}" = --all ]; then
  crates=(--workspace)
fi
cargo "+$toolchain" check --locked "${crates[@]}" --target-dir target/minimum-rust
