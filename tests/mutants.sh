#!/usr/bin/env bash
# Changes the code in small ways, one change at a time, and lists the changes that no test notices: a campaign of hours that goes on
# where it stopped.
#
#   tests/mutants.sh CRATE [SHARDS] [SECONDS]
#
# CRATE is cachalot-core, cachalot-snapshot, cachalot-cuda or cachalot. All changes are dealt to SHARDS shards in turn, 300 by default. Shards
# without a result are run one after the other, until none is left or SECONDS, if given, are over; the shards that are done are
# a sample of every kind of change. The results lie in target/mutants/CRATE/SHARDS, and a further call goes on with the next shard. The
# last lines are the sums of all finished shards, and the changes that survived.
#
# Each change runs the tests of its own crate, of the core the unit tests only. A change that survives is then judged by hand: with
# the tests of the repository, or as a change without effect. tests/results/mutants.md has the judgements. LEDGER names a ledger
# (tests/ledger.sh) that gets a line for each finished shard.
set -euo pipefail
cd "$(dirname "$0")/.."
crate=${1:?usage: mutants.sh CRATE [SHARDS] [SECONDS]}
shards=${2:-300}
seconds=${3:-}

if ! cargo mutants --version >/dev/null 2>&1; then
  echo "skipped: mutants (cargo install --locked cargo-mutants)"
  exit 0
fi
tests=()
[ "$crate" != cachalot-core ] || tests=(--lib)
export PROPTEST_CASES=${PROPTEST_CASES:-8}
results=target/mutants/$crate/$shards
mkdir -p "$results"
# A program that ended while a shard ran has left the shard without its mark: the shard is run again.
sources=$(git rev-parse HEAD)

count() { wc -l <"$1/mutants.out/$2.txt"; }

for ((shard = 0; shard < shards; shard++)); do
  [ -z "$seconds" ] || [ "$SECONDS" -lt "$seconds" ] || break
  of=$results/$shard
  [ ! -e "$of/done" ] || continue
  rm -rf "$of"
  mkdir -p "$of"
  begun=$SECONDS status=0
  cargo mutants --package "$crate" --sharding round-robin --shard "$shard/$shards" --baseline skip --timeout 150 --build-timeout 400 \
    --output "$of" -- "${tests[@]}" >"$of/log" 2>&1 || status=$?
  # 2: a change survived; 3: tests ran too long. Others are no results of changes.
  if [ "$status" != 0 ] && [ "$status" != 2 ] && [ "$status" != 3 ]; then
    tail -n 5 "$of/log" >&2
    exit 1
  fi
  echo "$sources" >"$of/done"
  if [ -n "${LEDGER:-}" ]; then
    tried=$(($(count "$of" caught) + $(count "$of" missed) + $(count "$of" timeout)))
    tests/ledger.sh "$LEDGER" "changes of the code" "$crate" "$shard of $shards" $((SECONDS - begun)) "$tried" "$tried" 0 \
      "$(count "$of" missed)"
  fi
done

for kind in caught timeout unviable missed; do
  sum=0
  for of in "$results"/*/done; do
    [ ! -e "$of" ] || sum=$((sum + $(count "${of%/done}" "$kind")))
  done
  echo "$kind: $sum"
done
finished=$(find "$results" -name done | wc -l)
echo "$finished of $shards shards, of $(find "$results" -name done -exec cat {} + | sort -u | wc -l) commits"
find "$results" -name missed.txt -exec cat {} +
