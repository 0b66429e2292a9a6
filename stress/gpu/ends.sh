#!/usr/bin/env bash
# Streams and contexts that end, on a GPU: streams.csv has the streams that end without a report, contexts.csv the contexts that end under
# `cachalot run`. The folder BIN has `unreported_streams`, `ended_contexts` (see the files) and `cachalot`.
#
#   stress/gpu/ends.sh BIN OUT [STREAMS [ROUNDS]]
set -euo pipefail
bin=$1 out=$2 streams=${3:-100000} rounds=${4:-100}
policies=17

jobs=()
for ((i = 0; i < policies; i++)); do
  "$bin/unreported_streams" "$streams" "$i" >"$out/streams.$i" 2>"$out/streams.$i.said" &
  jobs+=($!)
done
failed=0
for job in "${jobs[@]}"; do
  wait "$job" || failed=$((failed + 1))
done
{
  head -n 1 "$out/streams.0"
  for ((i = 0; i < policies; i++)); do tail -n +2 "$out/streams.$i"; done
} >"$out/streams.csv"
echo "processes that failed: $failed of $policies"

echo 'how,options,rounds,mib_before,mib_after_first,mib_after_last' >"$out/contexts.csv"
for options in "" "--policy stitched" "--config expandable_segments:True" "--parkable" "--limit 8GiB --policy stitched" "--observe"; do
  for how in reset destroy release; do
    # shellcheck disable=SC2086 # several options
    "$bin/cachalot" run $options -- "$bin/ended_contexts" "$how" "$rounds" "$options" >>"$out/contexts.csv" || echo "$how $options: failed"
  done
done
