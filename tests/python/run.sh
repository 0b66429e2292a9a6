#!/usr/bin/env bash
# Tests the Python package in a clean virtual environment, without PyTorch and without a GPU.
#
#   CACHALOT_LIBCUDA=target/emulated/libcuda.so.1 tests/python/run.sh [WHEEL]
#
# Without CACHALOT_LIBCUDA, the emulated driver is the one of the wheel. Without a wheel, builds the source distribution and installs that. The library is then built from the source distribution
# without optimisation. The command, its library for `cachalot run` and, beside this, the emulated libraries are the ones that the
# tests of the workspace use: CACHALOT_COMMAND and CACHALOT_FRONT name them, or cargo builds them. The tests of the adapters need libraries, which
# scripts/setup/adapters.sh fetches, and for Numba the emulated runtime beside the driver. Says in one line what is skipped
# where Python, or the index with its build tools, is missing.
set -euo pipefail
wheel=${1:+$(readlink -f "$1")}
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
environment=$root/.tools/python
python=$environment/bin/python

skip() {
  echo "skipped: the Python package ($1)"
  exit 0
}

command -v python3 >/dev/null || skip "no python3"
rm -rf "$environment"
python3 -m venv "$environment" >/dev/null 2>&1 || skip "python3 has no venv"
pip=("$python" -m pip --quiet --disable-pip-version-check)
"${pip[@]}" install 'setuptools>=77.0.3' >/dev/null 2>&1 || skip "no package index"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "$wheel" ]; then
  "${pip[@]}" install --no-deps "$wheel"
  export CACHALOT_LIBCUDA=${CACHALOT_LIBCUDA:-$environment/lib/cachalot/emulated/libcuda.so.1}
else
  cd "$root"
  target=${CARGO_TARGET_DIR:-$root/target}
  if [ -z "${CACHALOT_COMMAND:-}" ] || [ -z "${CACHALOT_FRONT:-}" ]; then
    cargo build --locked -q -p cachalot-cli -p cachalot-front -p 'cachalot-emulated-*'
    export CACHALOT_COMMAND=$target/debug/cachalot CACHALOT_FRONT=$target/debug/libcachalot_front.so
  fi
  CACHALOT_EMULATED=$(dirname "$CACHALOT_FRONT")
  export CACHALOT_EMULATED
  cd python
  "$python" -c "from setuptools import build_meta; build_meta.build_sdist('$work')" >"$work/log" 2>&1 ||
    { cat "$work/log" && exit 1; }
  cd "$work"
  # A folder of its own: the package's flags for the compiler differ from those of the tests.
  CACHALOT_CARGO_PROFILE=dev CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=$target/wheel \
    "${pip[@]}" install --no-build-isolation --no-deps "$work"/cachalot_gpu-*.tar.gz
fi

cd "$root/tests/python"
# Requests that fail on purpose leave no files.
export CACHALOT_RECORDER=files:0
for test in test_*.py; do
  echo "-- $test"
  PYTHONPATH=stand_in "$python" -B "$test"
done
