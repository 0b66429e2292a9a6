#!/usr/bin/env bash
# Fetches ONNX Runtime's shared library, pinned, for the tests of cachalot_ort.h. The package has no header.
#
#   eval "$(scripts/setup/onnxruntime.sh)" && cargo test -p cachalot --test all onnxruntime::
set -euo pipefail
. "$(dirname "$0")/wheels.sh"

unpack_wheels onnxruntime onnxruntime==1.31.1
cd "$tools/onnxruntime/onnxruntime/capi"
for name in libonnxruntime.so libonnxruntime.so.1; do
  ln -sf libonnxruntime.so.1.31.1 "$name"
done

echo "export CACHALOT_ONNXRUNTIME='$tools/onnxruntime/onnxruntime/capi'"
