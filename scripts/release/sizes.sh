#!/usr/bin/env bash
# Measures how large the library makes a C program, for tests/results/sizes/: some seconds after a build.
#
#   cargo build --release -p cachalot-library
#   scripts/release/sizes.sh target/release OUT        writes head.csv and sizes.csv into OUT
#   scripts/release/sizes.sh --check target/release    fails if a size differs from the table's by more than a tenth
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
table=$root/tests/results/sizes/sizes.csv
check=
if [ "${1:-}" = --check ]; then
  check=yes
  shift
fi
from=$(readlink -f "${1:?usage: sizes.sh [--check] FOLDER [OUT]}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$root/ffi/packaging/install.sh" --from "$from" "$work/installed" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
# The C program of the README.
sed -n '/^```c$/,/^```$/{/^```/!p}' "$root/README.md" >"$work/app.c"
archive=$work/installed/lib/libcachalot.a
build() { cc -std=c11 -O2 "$work/app.c" -I "$work/installed/include" "$archive" -lpthread -ldl -lm "${@:2}" -o "$work/$1"; }
build plain
build sections -Wl,--gc-sections
build stripped -Wl,--gc-sections
strip "$work/stripped"
"$work/stripped"
cp "$work/installed/lib/libcachalot.so" "$work/shared"

rows="plain|the C program of the README, with the static library
sections|with \`-Wl,--gc-sections\`
stripped|with \`-Wl,--gc-sections\`, and \`strip\` after it
shared|the shared library, stripped as it is installed"
megabytes() { awk -v bytes="$(stat -Lc %s "$1")" 'BEGIN { printf "%.2f", bytes / 1e6 }'; }

if [ -n "$check" ]; then
  while IFS='|' read -r file what; do
    # The row of the table: "what",MB
    known=$(grep -F "\"$what\"," "$table" | sed 's/.*,//' || true)
    now=$(megabytes "$work/$file")
    if ! awk -v now="$now" -v known="${known:-0}" 'BEGIN { exit !(now <= known * 1.1 && now >= known * 0.9) }'; then
      echo "$what: $now MB, and ${known:-no size} in tests/results/sizes/sizes.csv: measure anew with scripts/release/sizes.sh" >&2
      exit 1
    fi
  done <<<"$rows"
  exit 0
fi

out=${2:?usage: sizes.sh FOLDER OUT}
mkdir -p "$out"
cat >"$out/head.csv" <<END
what,is
machine,any x86-64; a size depends on the compilers
compilers,"$(rustc --version), $(cc --version | head -n 1)"
date,$(date -u +%Y-%m-%d)
commit,${CACHALOT_COMMIT:-$(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)}
command,"\`cargo build --release -p cachalot-library\`, then \`scripts/release/sizes.sh target/release OUT\`; \`--check\` holds the table against a build"
END
{
  echo program,MB
  while IFS='|' read -r file what; do
    echo "\"$what\",$(megabytes "$work/$file")"
  done <<<"$rows"
} >"$out/sizes.csv"
