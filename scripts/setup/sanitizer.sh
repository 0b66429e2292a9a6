#!/usr/bin/env bash
# Fetches NVIDIA's compute-sanitizer, pinned, for the comparison of tests/guards on a machine with a GPU.
#
#   eval "$(scripts/setup/sanitizer.sh)" && tests/guards/build.sh OUT
set -euo pipefail
. "$(dirname "$0")/wheels.sh"

unpack_wheels sanitizer nvidia-cuda-sanitizer-api==13.0.85
home=$tools/sanitizer/nvidia/cu13/compute-sanitizer
chmod +x "$home/compute-sanitizer" "$home/TreeLauncherSubreaper" 2>/dev/null || true
echo "export SANITIZER_HOME='$home'"
