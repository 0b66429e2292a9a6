#!/usr/bin/env bash
# Builds what a release uploads to PyPI, and tests the wheel: the source distribution, and from it a wheel for every Linux
# with glibc 2.17 or later.
#
#   python/release.sh OUT
#
# CACHALOT_LIBCUDA names the emulated driver for the tests: see tests/python/run.sh.
set -euo pipefail
mkdir -p "${1:?usage: release.sh OUT}"
out=$(readlink -f "$1")
cd "$(dirname "$0")"
tools=$(../scripts/setup/manylinux.sh)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(
  eval "$tools"
  python3 -c "from setuptools import build_meta; build_meta.build_sdist('$work')" >"$work/log" || { cat "$work/log" && exit 1; }
  CACHALOT_GLIBC=2.17 CARGO_TARGET_DIR=$(cd .. && pwd)/target/manylinux \
    python3 -m pip wheel --quiet --no-build-isolation --no-deps -w "$work" "$work"/*.tar.gz
  # Fails unless the wheel has no newer symbol and needs no other library, and renames the wheel.
  python3 -m auditwheel repair --plat manylinux_2_17_x86_64 -w "$work/repaired" "$work"/*.whl
)
../tests/python/run.sh "$work"/repaired/*.whl
mv "$work"/*.tar.gz "$work"/repaired/*.whl "$out"
ls -l "$out"
