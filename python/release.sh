#!/usr/bin/env bash
# Builds what a release uploads to PyPI, and tests the wheel: the source distribution, and from it a wheel for every Linux
# with glibc 2.28 or later, both with the licences of the crates in them, and the wheel's bill of materials.
#
#   python/release.sh OUT [PROCESSOR]      x86_64 or aarch64 (scripts/release/processor.sh); default: this machine's
#
# Everything else is installed into .tools. CACHALOT_PIECES names a folder that build_pieces.py has made
# before, CACHALOT_BINARIES one that scripts/release/binaries.sh has made before.
set -euo pipefail
mkdir -p "${1:?usage: release.sh OUT [PROCESSOR]}"
out=$(readlink -f "$1")
processor=${2:-$(uname -m)}
pieces=${CACHALOT_PIECES:+$(readlink -f "$CACHALOT_PIECES")}
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work" LICENSE-THIRD-PARTY.txt' EXIT
built=${CACHALOT_BINARIES:-$(../scripts/release/binaries.sh "$processor")}
tools=$(../scripts/setup/manylinux.sh)
(
  eval "$tools"
  . ../scripts/release/processor.sh
  # The wheel has the notices among its licences, and the bill of materials is next to it.
  # shellcheck disable=SC2046 # each crate is a word
  ../scripts/release/notices.py "$work/notices" $(python3 -c 'import build_native; print(*build_native.GIVEN)')
  cp "$work/notices/THIRD-PARTY.txt" LICENSE-THIRD-PARTY.txt
  if [ -z "$pieces" ]; then
    pieces=$work/pieces
    ./build_pieces.py "$pieces"
  fi
  python3 -c "from setuptools import build_meta; build_meta.build_sdist('$work')" >"$work/log" || { cat "$work/log" && exit 1; }
  CACHALOT_LIBRARY=$built/libcachalot.so CACHALOT_COMMAND=$built/cachalot CACHALOT_FRONT=$built/libcachalot_front.so \
    CACHALOT_EMULATED=$built CACHALOT_PIECES=$pieces \
    python3 -m pip wheel --quiet --no-build-isolation --no-deps -w "$work" "$work"/*.tar.gz
  # Fails if the wheel needs another library, and names it after the oldest glibc that has its symbols. The library of `cachalot run`
  # needs the driver by a name that the command makes, and the parts for PyTorch need PyTorch's libraries, which are loaded.
  python3 -m auditwheel repair --plat auto --exclude libcachalot-driver.so.1 \
    --exclude libc10.so --exclude libc10_cuda.so --exclude libtorch_cpu.so --exclude libtorch_cuda.so -w "$work/repaired" "$work"/*.whl
)
wheel=$(basename "$work"/repaired/*.whl)
[[ $wheel =~ manylinux_2_(1[0-9]|2[0-8])_$processor ]] || { echo "$wheel needs a glibc later than 2.28" >&2 && exit 1; }
# On the wheel's own emulated driver.
[ "$processor" != "$(uname -m)" ] || env -u CACHALOT_LIBCUDA ../tests/python/run.sh "$work"/repaired/*.whl
mv "$work"/*.tar.gz "$work"/repaired/*.whl "$out"
mv "$work/notices/sbom.cdx.json" "$out/cachalot-linux-$processor.cdx.json"
ls -l "$out"
