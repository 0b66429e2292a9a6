#!/usr/bin/env bash
# Fetches CMake, pinned, for the test that uses the CMake package.
#
#   eval "$(scripts/setup/cmake.sh)" && cargo test -p cachalot --test all packaging::
set -euo pipefail
. "$(dirname "$0")/wheels.sh"

unpack_wheels cmake cmake==3.31.6

"$tools/cmake/cmake/data/bin/cmake" --version >&2
echo "export CMAKE='$tools/cmake/cmake/data/bin/cmake'"
