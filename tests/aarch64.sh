#!/usr/bin/env bash
# Builds what a release contains for Linux on aarch64, and runs tests there under an emulator of the processor: a campaign, and no part of
# tests/run. `PROCESSOR=aarch64 tests/ways_in.sh` tries the wheel, the archive and the packages there.
#
#   tests/aarch64.sh              everything
#   tests/aarch64.sh check        the check of the types alone, which needs neither a linker nor an emulator
#   tests/aarch64.sh test NAME…   the tests of which a NAME is a part, in place of all
#
# Needs rustup, Debian's gcc-aarch64-linux-gnu, g++-aarch64-linux-gnu and qemu-user-static, or says in one line which is missing. QEMU or
# PATH leads to the emulator. The emulator keeps the order of memory of its host, so that the runs show nothing about weaker orders.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}
shift || true

target=aarch64-unknown-linux-gnu
if ! command -v rustup >/dev/null || ! rustup target add "$target" >/dev/null 2>&1; then
  echo "skipped: aarch64 (rustup cannot install $target)"
  exit 0
fi
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
shipped=(-p cachalot-core -p cachalot-cuda -p cachalot -p cachalot-run -p cachalot-front)
# SQLite's sources need the compiler.
if command -v "$CC_aarch64_unknown_linux_gnu" >/dev/null; then
  shipped+=(-p cachalot-library -p cachalot-cli -p 'cachalot-emulated-*')
fi
cargo check --locked -q --target "$target" "${shipped[@]}"
echo "checked: $target"
[ "$what" != check ] || exit 0

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CXX_aarch64_unknown_linux_gnu=aarch64-linux-gnu-g++
for tool in "$CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER" "$CXX_aarch64_unknown_linux_gnu"; do
  if ! command -v "$tool" >/dev/null; then
    echo "skipped: tests on aarch64 ($tool: Debian's gcc-aarch64-linux-gnu and g++-aarch64-linux-gnu)"
    exit 0
  fi
done
qemu=${QEMU:-$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)}
if [ -z "$qemu" ]; then
  echo "skipped: tests on aarch64 (no qemu-aarch64-static: Debian's qemu-user-static)"
  exit 0
fi
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$qemu -L /usr/aarch64-linux-gnu"
export PROPTEST_CASES=${PROPTEST_CASES:-8}
cargo test --locked --target "$target" -p cachalot-core --lib -- "$@"
# The emulator takes every call of madvise for done: no page is wiped in a child (MADV_WIPEONFORK), and none made beforehand
# (MADV_POPULATE_WRITE).
unseen=(fork the_pages_are_there_before_the_first_use the_memory_of_the_process_grows memory_is_lacking_if_any_part_is
  an_aligned_mapping_leaves_nothing a_kernel_without_the_call a_region_without_memory)
cargo test --locked --target "$target" -p cachalot-cuda --lib -- "${unseen[@]/#/--skip=}" "$@"
cargo test --locked --target "$target" -p cachalot-emulated-driver --lib -- "$@"
cargo test --locked --target "$target" -p cachalot --lib -- "$@"
cargo test --locked --target "$target" -p cachalot-gate -p cachalot-front --lib -- "$@"
# The memory of the host as on a kernel with pages of 64 KiB: the emulator says so, and does not refuse shorter ones.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$qemu -p 65536 -L /usr/aarch64-linux-gnu"
cargo test --locked --target "$target" -p cachalot-cuda --lib -- host_memory:: "${unseen[@]/#/--skip=}" "$@"
