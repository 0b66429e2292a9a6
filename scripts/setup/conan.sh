#!/usr/bin/env bash
# Installs Conan, pinned, for the test of the recipe in ffi/packaging/conan.
#
#   eval "$(scripts/setup/conan.sh)" && cargo test -p cachalot --test all packaging::conan
set -euo pipefail
. "$(dirname "$0")/wheels.sh"
version=2.34.0

if [ ! -x "$tools/conan/$version/bin/conan" ]; then
  rm -rf "$tools/conan"
  python3 -m venv "$tools/conan/$version"
  "$tools/conan/$version/bin/python" -m pip install --quiet --disable-pip-version-check "conan==$version" >&2
fi

"$tools/conan/$version/bin/conan" --version >&2
echo "export CONAN='$tools/conan/$version/bin/conan'"
