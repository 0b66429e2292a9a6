#!/usr/bin/env bash
# Seals a Rust static library: makes it one object whose only global names are those that it offers.
#
#   ffi/packaging/seal.sh LIBRARY.a SEALED.a NAME...
#
# A Rust static library brings a standard library with it, some names of which are the same in every one (such as
# rust_eh_personality). Two in one program may therefore not link, namely when one was made with link-time optimisation
# (rust-lang/rust 44322). A sealed one does, beside any other, of whatever compiler. Needs GNU ld and objcopy, those
# with the prefix CROSS_COMPILE.
set -euo pipefail
cross=${CROSS_COMPILE:-}
library=$(readlink -f "${1:?usage: seal.sh LIBRARY.a SEALED.a NAME...}")
sealed=${2:?usage: seal.sh LIBRARY.a SEALED.a NAME...}
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

printf '%s\n' "$@" >"$work/names"
# Without what no offered function reaches, such as half of the standard library.
mapfile -t roots < <(printf -- '--undefined=%s\n' "$@")
"${cross}ld" -r --gc-sections "${roots[@]}" --whole-archive "$library" -o "$work/sealed.o"
# The reference to the personality is in a group that linkers merge by name: with a name of its own it is not merged with the
# other library's. Bit code is of no use to linkers that do not come with the compiler, and confuses some.
"${cross}objcopy" --strip-debug --remove-section=.llvmbc --remove-section=.llvmcmd \
  --redefine-sym "DW.ref.rust_eh_personality=DW.ref.$1.personality" "$work/sealed.o"
# A weak name that only the left out parts refer to is listed as a strong one, which a program would have to define.
undefined() { LC_ALL=C readelf --wide --symbols "$library" | awk -v is="$1" '$5 == is && $7 == "UND" { print $8 }' | sort -u; }
comm -23 <(undefined WEAK) <(undefined GLOBAL) >"$work/weak"
"${cross}objcopy" --weaken-symbols="$work/weak" "$work/sealed.o"
"${cross}objcopy" --keep-global-symbols="$work/names" "$work/sealed.o"
rm -f "$sealed"
"${cross}ar" rcsD "$sealed" "$work/sealed.o"
