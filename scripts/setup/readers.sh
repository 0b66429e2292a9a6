#!/usr/bin/env bash
# Fetches readers of the formats that `cachalot export` writes: Perfetto's published schema and Prometheus' parser from PyPI, and
# a decoder of pprof's profiles from npm.
#
#   eval "$(scripts/setup/readers.sh)" && cargo test -p cachalot-cli --test all readers
set -euo pipefail
. "$(dirname "$0")/wheels.sh"

unpack_wheels readers perfetto==0.59.1 protobuf==7.36.2 prometheus-client==0.26.0

decoder=pprof-format@2.3.2
if [ "$(cat "$tools/readers-node/.unpacked" 2>/dev/null)" != "$decoder" ]; then
  rm -rf "$tools/readers-node"
  mkdir -p "$tools/readers-node"
  npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$tools/readers-node" "$decoder" >&2
  printf '%s' "$decoder" >"$tools/readers-node/.unpacked"
fi

echo "export CACHALOT_READERS='$tools/readers' CACHALOT_READERS_NODE='$tools/readers-node/node_modules'"
