#!/usr/bin/env bash
# Builds what a release uploads to PyPI, and tests the wheel: the source distribution, and from it a wheel for every Linux
# with glibc 2.28 or later, both with the licences of the crates in them, and the wheel's bill of materials.
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
trap 'rm -rf "$work" LICENSE-THIRD-PARTY.txt' EXIT
# The wheel has the notices among its licences, and the bill of materials is next to it.
../scripts/release/notices.py "$work/notices" cachalot-library cachalot-cli cachalot-front
cp "$work/notices/THIRD-PARTY.txt" LICENSE-THIRD-PARTY.txt
./build_pieces.py "$work/pieces"
(
  eval "$tools"
  python3 -c "from setuptools import build_meta; build_meta.build_sdist('$work')" >"$work/log" || { cat "$work/log" && exit 1; }
  # Optimised over the borders of crates, which a build from source leaves out: it takes a third longer for 1 % at most.
  CACHALOT_PIECES=$work/pieces CARGO_PROFILE_RELEASE_LTO=fat CACHALOT_GLIBC=2.17 CARGO_TARGET_DIR=$(cd .. && pwd)/target/manylinux \
    python3 -m pip wheel --quiet --no-build-isolation --no-deps -w "$work" "$work"/*.tar.gz
  # Fails unless the wheel has no newer symbol and needs no other library, and renames the wheel. The library of `cachalot run`
  # needs the driver by a name that the command makes, and the parts for PyTorch need PyTorch's libraries, which are loaded.
  python3 -m auditwheel repair --plat manylinux_2_28_x86_64 --exclude libcachalot-driver.so.1 \
    --exclude libc10.so --exclude libc10_cuda.so --exclude libtorch_cpu.so --exclude libtorch_cuda.so -w "$work/repaired" "$work"/*.whl
)
../tests/python/run.sh "$work"/repaired/*.whl
mv "$work"/*.tar.gz "$work"/repaired/*.whl "$out"
mv "$work/notices/sbom.cdx.json" "$out/cachalot_gpu.cdx.json"
ls -l "$out"
