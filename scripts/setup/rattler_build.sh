#!/usr/bin/env bash
# Installs rattler-build, pinned, for the test of the recipe for conda-forge:
#
#   eval "$(scripts/setup/rattler_build.sh)"
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/wheels.sh"

unpack_wheels rattler-build py-rattler-build==0.73.0
echo "export RATTLER_BUILD='$tools/rattler-build'"
