#!/usr/bin/env bash
# Runs tests under Miri, which finds undefined behaviour: reads of what is not initialised, references that alias, data races.
#
#   tests/miri.sh memory        the driver's memory calls over a fake driver: seconds
#   tests/miri.sh driver        all tests of the driver's device over the fake driver: many minutes
#   tests/miri.sh interface     the C interface on simulated devices: minutes
#   tests/miri.sh core          the core's and the planner's own tests: the longest, and neither crate has unsafe code
#   tests/miri.sh               driver and interface
#
# Needs a nightly toolchain with Miri and rust-src. Tests that Miri cannot run, for lack of fork or of loaded libraries, say so
# beside their names.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo +nightly miri --version >/dev/null 2>&1 ||
  [ ! -d "$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library" ]; then
  echo "skipped: Miri (rustup toolchain install nightly --component miri,rust-src)"
  exit 0
fi

# What leaks is memcheck's to say: an allocator whose call panicked is kept on purpose.
export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-strict-provenance -Zmiri-ignore-leaks"
# Miri takes a thousand times as long as the processor.
export PROPTEST_CASES=1 PROPTEST_DISABLE_FAILURE_PERSISTENCE=true

miri() {
  echo "-- $*"
  cargo +nightly miri test --quiet --locked --target-dir target/miri "$@"
}

[ $# -gt 0 ] || set -- driver interface
for part in "$@"; do
  case $part in
    memory) miri -p cachalot-cuda --lib -- driver:: tests::memory ;;
    driver) miri -p cachalot-cuda --lib ;;
    interface)
      miri -p cachalot --features c --lib
      miri -p cachalot --features c --test all -- interface::
      ;;
    core) miri -p cachalot-core -p cachalot-planner --lib ;;
    *)
      echo "tests/miri.sh: $part is none of memory, driver, interface, core" >&2
      exit 2
      ;;
  esac
done
