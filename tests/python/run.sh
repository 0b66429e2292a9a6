#!/usr/bin/env bash
# Builds the wheel, installs it into a clean virtual environment and tests it there, without PyTorch and without a GPU.
#
#   CACHALOT_LIBCUDA=target/emulated/libcuda.so.1 tests/python/run.sh
#
# The package builds the library, without optimisation. Says in one line what it skips where Python, or the index with its
# build tools, are missing.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
environment=$root/.tools/python

skip() {
  echo "skipped: the Python package ($1)"
  exit 0
}

command -v python3 >/dev/null || skip "no python3"
rm -rf "$environment"
python3 -m venv "$environment" >/dev/null 2>&1 || skip "python3 has no venv"
pip=("$environment/bin/python" -m pip --quiet --disable-pip-version-check)
"${pip[@]}" install 'setuptools>=70.1' >/dev/null 2>&1 || skip "no package index"

target=${CARGO_TARGET_DIR:-$root/target}
rm -rf "$root/python/build"
# A folder of its own: the package's flags for the compiler differ from those of the tests.
CACHALOT_CARGO_PROFILE=dev CARGO_TARGET_DIR=$target/wheel "${pip[@]}" install --no-build-isolation --no-deps "$root/python"

for test in test_*.py; do
  echo "-- $test"
  PYTHONPATH=stand_in "$environment/bin/python" -B "$test"
done
