#!/usr/bin/env bash
# Removes what install.sh installed: the files that share/cachalot/manifest.txt lists, and folders that are empty then.
#
#   PREFIX/share/cachalot/uninstall.sh        removes it from the prefix that the script is in
#   ffi/packaging/uninstall.sh PREFIX         removes it from another one
set -euo pipefail
prefix=${1:-$(cd "$(dirname "$0")/../.." && pwd)}
manifest=$prefix/share/cachalot/manifest.txt
if [ ! -f "$manifest" ]; then
  echo "nothing to uninstall: $manifest is missing" >&2
  exit 1
fi
# Read as a whole first: the manifest lists itself.
mapfile -t files <"$manifest"
cd "$prefix"
for file in "${files[@]}"; do
  rm -f -- "$file"
done
for file in "${files[@]}"; do
  rmdir -p --ignore-fail-on-non-empty -- "$(dirname "$file")" 2>/dev/null || true
done
