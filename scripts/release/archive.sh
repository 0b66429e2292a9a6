#!/usr/bin/env bash
# Builds the archive of a release: one folder with everything that `ffi/packaging/install.sh --command` installs.
#
#   scripts/release/archive.sh OUT [PROCESSOR]                  builds the libraries and the command (binaries.sh)
#   scripts/release/archive.sh --from FOLDER OUT [PROCESSOR]    takes libraries and a command that were built before
#
# PROCESSOR is x86_64 or aarch64; default: this machine's.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
usage="usage: archive.sh [--from FOLDER] OUT [PROCESSOR]"
from=
if [ "${1:-}" = --from ]; then
  from=$(readlink -f "${2:?$usage}")
  shift 2
fi
mkdir -p "${1:?$usage}"
out=$(readlink -f "$1")
processor=${2:-$(uname -m)}
[ -n "$from" ] || from=$("$root/scripts/release/binaries.sh" "$processor")

. "$root/scripts/release/processor.sh"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml")
name=cachalot-$version-linux-$processor
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
env -u LIBDIR -u INCLUDEDIR -u DESTDIR "$root/ffi/packaging/install.sh" --command --from "$from" "$work/$name"
# The same files give the same archive.
tar --create --gzip --file="$out/$name.tar.gz" --directory="$work" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner "$name"
ls -l "$out/$name.tar.gz"
