#!/usr/bin/env bash
# Changes a crate in small ways, one change at a time, and lists the changes that no test notices. All changes are in one build
# (tests/mutants), and each is taken at run time: a campaign of minutes that goes on where it stopped.
#
#   tests/mutants.sh CRATE [JOBS] [SECONDS]
#
# CRATE is cachalot-core, cachalot-policies, cachalot-snapshot, cachalot-cuda or cachalot. JOBS changes are judged side by side, 2 by default. The programs,
# the list of changes and the results are in target/mutants/CRATE. Another call goes on there, and a call at another commit begins
# anew. On another machine, without a compiler, `cachalot-mutants run FOLDER` runs a copy of the folder.
#
# The last lines are the sums of each file and the changes that survived. tests/results/mutants.md has the judgements. LEDGER names a
# ledger (tests/ledger.sh) that gets a line.
set -euo pipefail
cd "$(dirname "$0")/.."
crate=${1:?usage: mutants.sh CRATE [JOBS] [SECONDS]}
jobs=${2:-2}
limit=()
[ -z "${3:-}" ] || limit=(--seconds "$3")
target=${CARGO_TARGET_DIR:-target}
folder=$target/mutants/$crate
cargo build --locked --package cachalot-mutants
mutants=$target/debug/cachalot-mutants

# Which programs judge what the unit tests do not notice.
alone=()
case $crate in
  cachalot-core)
    further=(--then cachalot-tests:courses --then cachalot-worlds:all --then cachalot-exhaustive:all --then cachalot-tests:allocator)
    ;;
  cachalot-policies) further=(--then cachalot-tests:courses --then cachalot-tests:allocator) ;;
  cachalot-snapshot) further=(--then cachalot-snapshot:all --then cachalot-tests:allocator) ;;
  # The C programs of its tests link the library with the changes.
  cachalot)
    further=(--then cachalot:all --feature c)
    further+=(--beside libcachalot.so --beside libcachalot.a --beside libcachalot_emulated_driver.so)
    # The tests compile programs into one folder: each gets a file system of its own there, or they run one by one.
    if unshare --mount true 2>/dev/null; then
      alone=(--alone "$target/mutants/work/build/tmp")
    else
      jobs=1
    fi
    ;;
  *) further=(--then "$crate:all") ;;
esac
if [ "$crate" = cachalot ] || [ "$crate" = cachalot-cuda ]; then
  cargo build --locked --package cachalot-emulated-driver
  "$target/debug/emulated-driver" install "$target/emulated"
  CACHALOT_LIBCUDA=$(readlink -f "$target/emulated/libcuda.so.1")
  export CACHALOT_LIBCUDA CACHALOT_EMU_DEVICES=2
fi
sources=$(git rev-parse HEAD; git diff HEAD | sha256sum)
if [ "$(cat "$folder/sources" 2>/dev/null)" != "$sources" ]; then
  rm -rf "$folder"
  "$mutants" build "$crate" "$folder" "${further[@]}" --work "$target/mutants/work"
  echo "$sources" >"$folder/sources"
fi

# A change may ask for memory or run without end, or end in a fault. Emulated devices reserve more addresses than memory.
if [ "$crate" = cachalot ]; then ulimit -v 64000000; else ulimit -v 8000000; fi
ulimit -t 1000
ulimit -c 0
export PROPTEST_CASES=${PROPTEST_CASES:-8}
begun=$SECONDS
"$mutants" run "$folder" --jobs "$jobs" "${limit[@]}" "${alone[@]}"
"$mutants" report "$folder" >"$folder/report"
cat "$folder/report"
if [ -n "${LEDGER:-}" ]; then
  read -r tried unnoticed < <(awk -F ' \\| ' '$9 == "all" { print $2 + $3 + $4 + $5, $4 + $5 }' "$folder/report")
  tests/ledger.sh "$LEDGER" "changes of the code" "$crate" all $((SECONDS - begun)) "$tried" "$tried" 0 "$unnoticed"
fi
