#!/usr/bin/env bash
# Builds the archive of a release: one folder with everything that `ffi/packaging/install.sh --command` installs.
#
#   scripts/release/archive.sh OUT                  builds the libraries and the command, optimised over the borders of crates and by
#                                                   a profile of the recorded programs (profile.sh)
#   scripts/release/archive.sh --from FOLDER OUT    takes libraries and a command that were built before
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
usage="usage: archive.sh [--from FOLDER] OUT"
from=()
if [ "${1:-}" = --from ]; then
  from=(--from "$(readlink -f "${2:?$usage}")")
  shift 2
fi
mkdir -p "${1:?$usage}"
out=$(readlink -f "$1")

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml")
name=cachalot-$version-linux-x86_64
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CARGO_PROFILE_RELEASE_LTO=fat
if [ "${#from[@]}" = 0 ]; then
  profile=$("$root/scripts/release/profile.sh" "$root/target/profile" "$root/ffi/packaging/build.sh" release cachalot-cli cachalot-front)
  export RUSTFLAGS="${RUSTFLAGS:-}${profile:+ -Cprofile-use=$profile}"
fi
env -u LIBDIR -u INCLUDEDIR -u DESTDIR \
  "$root/ffi/packaging/install.sh" --command "${from[@]}" "$work/$name"
# The same files give the same archive.
tar --create --gzip --file="$out/$name.tar.gz" --directory="$work" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner "$name"
ls -l "$out/$name.tar.gz"
