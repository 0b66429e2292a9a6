#!/usr/bin/env bash
# Packs the crates of a release as cargo publishes them, builds each from its package, and says what cargo would upload.
#
#   scripts/release/crates.sh OUT
#
# Each crate that does not say `publish = false` is published, in the order of their dependencies:
# `cargo publish --workspace` does so, and `cargo publish --workspace --dry-run` is what this script runs.
set -euo pipefail
mkdir -p "${1:?usage: crates.sh OUT}"
out=$(readlink -f "$1")
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/publish
rm -rf "$CARGO_TARGET_DIR/package"
cargo publish --workspace --dry-run --locked
# Where the packages are after that is no promise of cargo's.
published='import json, sys; print(*(p["name"] for p in json.load(sys.stdin)["packages"] if p["publish"] is None))'
read -ra crates < <(cargo metadata --locked --no-deps --format-version=1 | python3 -c "$published")
cargo package --locked --no-verify "${crates[@]/#/--package=}"
cp "$CARGO_TARGET_DIR"/package/*-"$version".crate "$out"
ls -l "$out"
