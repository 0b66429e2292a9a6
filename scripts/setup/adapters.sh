#!/usr/bin/env bash
# Fetches the libraries of PyPI whose adapters run on the emulated driver: cuda.core and Numba. CuPy and RMM bring NVIDIA's
# own runtime, which needs NVIDIA's driver: tests/python/gpu/adapters.py tests their adapters.
#
#   eval "$(scripts/setup/adapters.sh)" && tests/python/run.sh
set -euo pipefail
. "$(dirname "$0")/wheels.sh"

unpack_wheels adapters cuda-core==1.2.2 cuda-bindings==13.5.0 cuda-pathfinder==1.9.1 numba-cuda==0.30.4 numba==0.68.1 \
  llvmlite==0.50.0 numpy==2.4.6 packaging==26.4

echo "export CACHALOT_ADAPTERS='$tools/adapters'"
