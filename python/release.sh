#!/usr/bin/env bash
# Builds what a release uploads to PyPI, and tests the wheel: the source distribution, and from it a wheel for every Linux
# with glibc 2.17 or later.
#
#   python/release.sh OUT
set -euo pipefail
mkdir -p "${1:?usage: release.sh OUT}"
out=$(readlink -f "$1")
cd "$(dirname "$0")"
tools=$(../scripts/setup/manylinux.sh)
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
(
  eval "$tools"
  python3 -c "from setuptools import build_meta; build_meta.build_sdist('$out')" >"$built/log" || { cat "$built/log" && exit 1; }
  CACHALOT_GLIBC=2.17 CARGO_TARGET_DIR=$(cd .. && pwd)/target/manylinux \
    python3 -m pip wheel --quiet --no-build-isolation --no-deps -w "$built" "$out"/cachalot_gpu-*.tar.gz
  # Fails unless the wheel has no newer symbol and needs no other library, and renames the wheel.
  python3 -m auditwheel repair --plat manylinux_2_17_x86_64 -w "$out" "$built"/*.whl
)
../tests/python/run.sh "$out"/cachalot_gpu-*.whl
ls -l "$out"
