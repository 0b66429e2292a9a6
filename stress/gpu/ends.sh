#!/usr/bin/env bash
# Streams and contexts that end, on a GPU: streams.csv has the streams that end without a report, contexts.csv the contexts that end under
# `cachalot run`. The folder BIN has `unreported_streams`, `ended_contexts` (see the files) and `cachalot`.
#
#   stress/gpu/ends.sh BIN OUT [STREAMS [ROUNDS]]
#
# POLICIES names some of the 17 settings of streams by number, and ROUNDS of 0 leaves the contexts out. The contexts come first, alone,
# because their figures are of the whole device.
set -euo pipefail
bin=$1 out=$2 streams=${3:-100000} rounds=${4:-100}
echo 'how,options,rounds,mib_before,mib_after_first,mib_after_last' >"$out/contexts.csv"
[ "$rounds" = 0 ] || for options in "" "--policy stitched" "--config expandable_segments:True" "--parkable" "--limit 8GiB --policy stitched" "--observe"; do
  for how in reset destroy release; do
    # shellcheck disable=SC2086 # several options
    "$bin/cachalot" run $options -- "$bin/ended_contexts" "$how" "$rounds" "$options" >>"$out/contexts.csv" || echo "$how $options: failed"
  done
done

read -ra policies <<<"${POLICIES:-$(seq -s ' ' 0 16)}"

jobs=()
for i in "${policies[@]}"; do
  "$bin/unreported_streams" "$streams" "$i" >"$out/streams.$i" 2>"$out/streams.$i.said" &
  jobs+=($!)
done
failed=0
for job in "${jobs[@]}"; do
  wait "$job" || failed=$((failed + 1))
done
{
  head -n 1 "$out/streams.${policies[0]}"
  for i in "${policies[@]}"; do tail -n +2 "$out/streams.$i"; done
} >"$out/streams.csv"
echo "processes that failed: $failed of ${#policies[@]}"
