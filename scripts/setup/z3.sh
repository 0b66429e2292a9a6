#!/usr/bin/env bash
# Fetches z3, pinned, for the proofs of the arithmetic.
#
#   eval "$(scripts/setup/z3.sh)" && tests/arithmetic.sh
set -euo pipefail
. "$(dirname "$0")/wheels.sh"

unpack_wheels z3 z3-solver==5.4.1.0

echo "export CACHALOT_Z3='$tools/z3'"
