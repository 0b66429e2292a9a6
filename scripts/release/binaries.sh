#!/usr/bin/env bash
# Builds the libraries and the command of a release, and prints the folder of the files.
#
#   scripts/release/binaries.sh [PROCESSOR]      x86_64 or aarch64; default: this machine's
#
# They run with glibc 2.17 or later, and are optimised over the borders of crates, which a build from source leaves out: it takes a third
# longer for 1 % at most. On the machine's own processor, the code is laid out by a profile of the recorded programs (profile.sh).
set -euo pipefail
cd "$(dirname "$0")/../.."
processor=${1:-$(uname -m)}
root=$PWD
export CARGO_PROFILE_RELEASE_LTO=fat
if [ "$processor" = "$(uname -m)" ]; then
  profile=$(scripts/release/profile.sh target/profile ffi/packaging/build.sh release cachalot-cli cachalot-front)
  export RUSTFLAGS="${RUSTFLAGS:-}${profile:+ -Cprofile-use=$profile}"
fi
. scripts/release/processor.sh
eval "$(scripts/setup/manylinux.sh)"
cd python
CACHALOT_GLIBC=2.17 CARGO_TARGET_DIR=$root/target/manylinux python3 -c 'import build_native; print(build_native.built())'
