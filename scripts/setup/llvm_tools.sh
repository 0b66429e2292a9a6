#!/usr/bin/env bash
# Installs `llvm-profdata` of the toolchain in use into .tools/, by rustup's component `llvm-tools`, and prints its path as a variable:
#
#   eval "$(scripts/setup/llvm_tools.sh)"
#
# The profiles of a compiler are read by the tool of the same LLVM alone. rustup's own folders stay as they are.
set -euo pipefail
tools=$(cd "$(dirname "$0")/../.." && pwd)/.tools
release=$(rustc --version | cut -d ' ' -f 2)
host=$(rustc --print host-tuple)
to=$tools/llvm-tools/$release
if [ ! -x "$to/bin/llvm-profdata" ]; then
  work=$tools/llvm-tools/rustup
  rm -rf "$to" "$work"
  mkdir -p "$to/bin" "$to/lib"
  # A component comes with its toolchain: 0.8 GB, of which 0.2 GB stay.
  RUSTUP_HOME=$work rustup toolchain install "$release-$host" --profile minimal --component llvm-tools --no-self-update >&2
  from=$work/toolchains/$release-$host/lib/rustlib/$host
  cp -L "$from"/lib/libLLVM*.so* "$to/lib"
  mv "$from/bin/llvm-profdata" "$to/bin"
  rm -rf "$work"
fi
echo "export CACHALOT_LLVM_PROFDATA='$to/bin/llvm-profdata'"
