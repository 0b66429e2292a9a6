#!/usr/bin/env bash
# Fetches the libraries of PyPI whose adapters run on the emulated driver: cuda.core, Numba and RMM's memory resources. CuPy
# and RMM's buffers bring NVIDIA's own runtime, which needs NVIDIA's driver: tests/python/gpu/adapters.py has them.
#
#   eval "$(scripts/setup/adapters.sh)" && tests/python/run.sh
set -euo pipefail
. "$(dirname "$0")/wheels.sh"

unpack_wheels adapters cuda-core==1.2.2 cuda-bindings==13.5.0 cuda-pathfinder==1.9.1 numba-cuda==0.30.4 numba==0.68.1 \
  llvmlite==0.50.0 numpy==2.4.6 packaging==26.4 rmm-cu13==26.10.0 librmm-cu13==26.10.0 rapids-logger==0.3.0

echo "export CACHALOT_ADAPTERS='$tools/adapters'"
