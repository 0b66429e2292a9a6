#!/usr/bin/env bash
# Fetches a later version of NVIDIA's CCCL than nvcc.sh does, for the test that compiles the `cuda::mr` resource with both.
#
#   eval "$(scripts/setup/nvcc.sh)" && eval "$(scripts/setup/cccl.sh)" && cargo test -p cachalot --test all header::
set -euo pipefail
. "$(dirname "$0")/wheels.sh"

unpack_wheels cccl nvidia-cuda-cccl==13.3.5.0.6

echo "export CACHALOT_CCCL='$tools/cccl/nvidia/cu13/include/cccl'"
