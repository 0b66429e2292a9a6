#!/usr/bin/env bash
# Fetches torch's _memory_viz.py of two versions for the test that draws our snapshots with it: that one file of each wheel.
#
#   eval "$(scripts/setup/memory_viz.sh)" && cargo test -p cachalot --test all memory_viz::
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tools=$(cd "$here/../.." && pwd)/.tools

python3 "$here/memory_viz.py" "$tools/memory-viz" 2.3.0 2.15.0 >&2

echo "export CACHALOT_MEMORY_VIZ='$tools/memory-viz'"
