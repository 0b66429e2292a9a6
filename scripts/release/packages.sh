#!/usr/bin/env bash
# Makes the Debian package and the RPM of a release: what `ffi/packaging/install.sh --command` installs, below /usr.
#
#   scripts/release/packages.sh FOLDER OUT [PROCESSOR]      FOLDER: libraries and a command that were built before (binaries.sh)
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
usage="usage: packages.sh FOLDER OUT [PROCESSOR]"
from=$(readlink -f "${1:?$usage}")
mkdir -p "${2:?$usage}"
out=$(readlink -f "$2")
processor=${3:-$(uname -m)}
. "$root/scripts/release/processor.sh"
eval "$("$root/scripts/setup/nfpm.sh")"
VERSION=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml")
case $processor in
x86_64) ARCH=amd64 ;;
aarch64) ARCH=arm64 ;;
esac
# The same files give the same packages.
export VERSION ARCH STAGE SOURCE_DATE_EPOCH=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# package KIND LIBDIR: makes one package, whose system looks for libraries in LIBDIR.
package() {
  STAGE=$work/$1
  DESTDIR=$STAGE LIBDIR=$2 "$root/ffi/packaging/install.sh" --command --from "$from" /usr
  # The package manager knows the files, and removes them.
  rm -r "$STAGE/usr/share/cachalot"
  find "$STAGE" -exec touch --no-dereference --date=@0 {} +
  nfpm package --config "$root/ffi/packaging/nfpm.yaml" --packager "$1" --target "$out"
}
package deb "lib/$processor-linux-gnu"
package rpm lib64
