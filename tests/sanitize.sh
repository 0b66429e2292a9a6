#!/usr/bin/env bash
# Runs the thread tests, the stress program and the C hosts under ThreadSanitizer, AddressSanitizer and helgrind. A campaign, and
# no part of tests/run: each takes minutes.
#
#   tests/sanitize.sh [thread] [address] [helgrind]       all three if none is named
#
# The sanitizers need a nightly toolchain, ThreadSanitizer its rust-src; helgrind needs valgrind; the hosts need a C compiler.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }
skip() { echo "skipped: $1 ($2)"; }

target=$(rustc -vV | sed -n 's/^host: //p')
# Hosts of tests/c_abi/process, each with the number of rounds that it takes at such a speed, if it takes one.
hosts=(callbacks exit planned open_later "streams 40" "threads 20" captures shutdown)
# These run on the driver only.
driver_only=" open_later shutdown "
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Finds the sanitizers' runtimes of the nightly toolchain. Fails, with a line, if the toolchain or a part of it is missing.
nightly() {
  if ! sysroot=$(rustc +nightly --print sysroot 2>/dev/null); then
    skip "$1" "no nightly toolchain: rustup toolchain install nightly --component rust-src"
    return 1
  fi
  if [ ! -d "$sysroot/lib/rustlib/src/rust/library" ]; then
    skip "$1" "no rust-src: rustup component add rust-src --toolchain nightly"
    return 1
  fi
  runtimes=$sysroot/lib/rustlib/$target/lib
}

# Puts a library and the emulated driver where programs find them: link_to FOLDER, that of the library.
#
# The driver is the usual build: its locks are pthread's, which every one of these tools follows by itself.
link_to() {
  local name
  for name in libcachalot.so libcachalot.so.0.1; do
    ln -sf "$(realpath "$1")/libcachalot.so" "$scratch/$name"
  done
  ln -sf "$PWD/target/debug/libcachalot_emulated_driver.so" "$scratch/libcuda.so.1"
}

# Runs a program, and goes on if it fails: the script fails at its end.
failed=()
try() {
  if "$@"; then
    echo "nothing found: $*"
  else
    failed+=("$*")
  fi
}

# Runs every host, on simulated devices and on the emulated driver: run_hosts [COMMAND ...] in front of each
run_hosts() {
  local host
  for host in "${hosts[@]}"; do
    local name=${host% *} rounds=()
    [ "$name" = "$host" ] || rounds=("${host#* }")
    if [[ $driver_only != *" $name "* ]]; then
      try "$@" "$scratch/$name" --simulated "${rounds[@]}"
    fi
    CACHALOT_LIBCUDA=$scratch/libcuda.so.1 try "$@" "$scratch/$name" "${rounds[@]}"
  done
}

# Compiles every host: compile_hosts COMPILER-FLAGS... -- LINKER-FLAGS...
compile_hosts() {
  local flags=() host
  while [ "$1" != -- ]; do
    flags+=("$1")
    shift
  done
  shift
  for host in "${hosts[@]}"; do
    local name=${host% *}
    cc -std=c11 -g "${flags[@]}" -I include -c "tests/c_abi/process/$name.c" -o "$scratch/$name.o"
    cc "$scratch/$name.o" -o "$scratch/$name" "$@" -L "$scratch" -lcachalot "-Wl,-rpath,$scratch" -ldl -lpthread -lm -lrt
  done
}

# Runs everything under one of the compiler's sanitizers: sanitized NAME RUNTIME
sanitized() {
  local name=$1 folder=target/sanitize-$1
  local cargo=(cargo +nightly)
  local common=(--locked --target "$target" --target-dir "$folder" -Zbuild-std)
  export RUSTFLAGS="-Zsanitizer=$name -Cforce-frame-pointers=yes"
  # The kernels would bring the C++ compiler's own runtime along, and there must be one of them only.
  export CXXFLAGS="-fno-sanitize=all"
  # Under ThreadSanitizer a process has less room for addresses than the emulated devices like to have.
  export CACHALOT_EMU_ADDRESS_SPACE=$((64 << 30))
  step "$name: the core's thread tests"
  try "${cargo[@]}" test "${common[@]}" -p cachalot-tests --test allocator threads
  step "$name: the stress program"
  "${cargo[@]}" build "${common[@]}" -p cachalot-library -p cachalot-stress
  local built=$folder/$target/debug
  link_to "$built"
  export CACHALOT_LIBCUDA=$scratch/libcuda.so.1 CACHALOT_EMU_DEVICES=2 CACHALOT_EMU_DELAY_US=300
  try "$built/cachalot-stress" --seed 1 --ops 8000 --threads 4 --streams 4 --devices 2 --disturb 40 --round 1000 --batch 16 \
    --blocks 100 --max-mib 8 --hold-us 500
  try "$built/cachalot-stress" churn --streams 400 --threads 200 --pools 200 --ops 20000 --bound-kib 1048576
  unset RUSTFLAGS CXXFLAGS CACHALOT_LIBCUDA CACHALOT_EMU_DEVICES CACHALOT_EMU_DELAY_US
  step "$name: the C hosts"
  if ! command -v cc >/dev/null; then
    skip "$name: the C hosts" "no C compiler"
    return 0
  fi
  # Here too the one runtime is the nightly toolchain's.
  compile_hosts "-fsanitize=$name" -- -rdynamic -Wl,--whole-archive "$runtimes/librustc-nightly_rt.$2.a" -Wl,--no-whole-archive
  run_hosts
}

thread() {
  nightly "ThreadSanitizer" || return 0
  export TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1 exitcode=66"
  sanitized thread tsan
}

address() {
  nightly "AddressSanitizer" || return 0
  # A host ends with an allocator alive, on purpose, and a lost context's memory is nobody's: what leaks is memcheck's to say.
  export ASAN_OPTIONS="detect_leaks=0 detect_stack_use_after_return=1"
  sanitized address asan
}

helgrind() {
  if ! command -v valgrind >/dev/null || ! command -v cc >/dev/null; then
    skip "helgrind" "no valgrind or no C compiler"
    return 0
  fi
  step "helgrind: the C hosts"
  cargo build --locked -p cachalot-library
  link_to target/debug
  compile_hosts -O1 --
  # Fair: else one thread that waits for another may keep it from running.
  run_hosts valgrind --quiet --tool=helgrind --error-exitcode=99 --fair-sched=yes --num-callers=30 \
    --suppressions=tests/c_abi/helgrind.supp
}

[ $# -gt 0 ] || set -- thread address helgrind
step "the emulated driver"
cargo build --locked -p cachalot-emulated-driver
for part in "$@"; do
  case $part in
    thread | address | helgrind) "$part" ;;
    *)
      echo "tests/sanitize.sh: $part is none of thread, address, helgrind" >&2
      exit 2
      ;;
  esac
done
if [ ${#failed[@]} -gt 0 ]; then
  printf '\n%d failed:\n' "${#failed[@]}" >&2
  printf '  %s\n' "${failed[@]}" >&2
  exit 1
fi
