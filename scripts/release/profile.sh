#!/usr/bin/env bash
# Makes the profile of a release: how often the recorded programs of tests/traces take each branch. Prints the file, by which the
# compiler then lays out the code of the same build. Prints nothing, and says why, where the tools cannot be fetched.
#
#   scripts/release/profile.sh FOLDER BUILD...
#
# BUILD is a command that builds the libraries, and prints their folder. Its `RUSTFLAGS` ask for code that counts, and its
# CARGO_TARGET_DIR is in FOLDER. The real build then has `RUSTFLAGS=-Cprofile-use=FILE`. Two runs differ in
# a few counts of the command: its tables have random seeds, and its progress bar looks at the clock.
set -euo pipefail
usage="usage: profile.sh FOLDER BUILD..."
mkdir -p "${1:?$usage}"
folder=$(readlink -f "$1")
build=("${@:2}")
[ "${#build[@]}" -gt 0 ] || { echo "$usage" >&2 && exit 2; }
cd "$(dirname "$0")/../.."

if ! tools=$(scripts/setup/llvm_tools.sh 2>"$folder/log"); then
  echo "left out: the profile, which needs rustup's llvm-tools: $(tail -n 1 "$folder/log")" >&2
  exit
fi
eval "$tools"

counts=$folder/counts
rm -rf "$counts"
mkdir -p "$counts"
built=$(RUSTFLAGS="${RUSTFLAGS:-} -Cprofile-generate=$folder/unused" CARGO_TARGET_DIR=$folder/target "${build[@]}" | tail -n 1)
${CC:-cc} -O2 -Wall -Wextra -Iffi/include scripts/release/train.c -o "$folder/train" "$built/libcachalot.so"

# operations TRACE USES: the operations of a trace, with a use on a second stream for every block if USES is 1.
operations() {
  zcat "tests/traces/$1.csv.gz" | awk -F , -v uses="$2" '
    $1 == "a" && !($4 in stream) { stream[$4] = 4096 * streams++ }
    $1 == "a" { slot[$2] = slots++ + 0; print "a", slot[$2], $3, stream[$4]; if (uses) print "u", slot[$2], 4096 * 99 }
    $1 == "f" { print "f", slot[$2] }'
}

# train TRACE USES PASSES CONFIG: one run of the C interface, with the counts in its own file. Loaded first, because the library has
# another name for the linker.
train() {
  operations "$1" "$2" | LLVM_PROFILE_FILE=$counts/$1-$4.profraw LD_PRELOAD=$built/libcachalot.so "$folder/train" "$4" "$3" >/dev/null
}
for trace in gpt2_varlen llm_generate unet_buckets resnet50_amp; do
  train "$trace" 0 8 policy:caching
  train "$trace" 0 2 policy:stitched
done
train multistream_prefetch 1 8 policy:caching
train multistream_prefetch 1 2 policy:stitched
for policy in bfc buddy size_class slab; do
  train vit_mixed_res 0 1 "policy:$policy"
done
train lstm_varlen 0 4 expandable_segments:True
if [ -x "$built/cachalot" ]; then
  # One thread: counters that threads share lose counts.
  LLVM_PROFILE_FILE=$counts/command.profraw RAYON_NUM_THREADS=1 "$built/cachalot" replay --check tests/traces/lstm_varlen.csv.gz >/dev/null
fi
# Two functions count by the clock and not by the program: the clock's own calibration, and whether a mapping took any time.
"$CACHALOT_LLVM_PROFDATA" merge --no-function='quanta|12with_request' -o "$folder/cachalot.profdata" "$counts"/*.profraw
echo "$folder/cachalot.profdata"
