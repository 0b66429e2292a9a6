#!/usr/bin/env bash
# Builds libcachalot.a and libcachalot.so, and prints the folder that has them.
#
#   ffi/packaging/build.sh [PROFILE [CRATE...]]      a profile of cargo: release (the default) or dev; more crates to build
#
# CARGO names cargo where it is not on the path, CARGO_TARGET_DIR the folder of the build, RUSTFLAGS more flags of the compiler.
set -euo pipefail
profile=${1:-release}
more=("${@:2}")
cargo=${CARGO:-cargo}
if ! command -v "$cargo" >/dev/null; then
  echo "cachalot is built by cargo, which is not installed: install Rust from https://rustup.rs" >&2
  exit 1
fi

manifest=$(cd "$(dirname "$0")/../library" && pwd)/Cargo.toml
root=$(dirname "$("$cargo" locate-project --workspace --message-format plain --manifest-path "$manifest")")
# Messages of panics and debug information would name folders of this machine.
flags="'--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo', '--remap-path-prefix=$root=cachalot'"
for flag in ${RUSTFLAGS:-}; do
  flags+=", '$flag'"
done
# The variable would take the place of the flags above.
env -u RUSTFLAGS "$cargo" build --manifest-path "$manifest" -p cachalot-library "${more[@]/#/--package=}" --profile "$profile" --config "build.rustflags=[$flags]" >&2

folder=$profile
if [ "$profile" = dev ]; then
  folder=debug
fi
printf '%s\n' "${CARGO_TARGET_DIR:-$root/target}/$folder"
