#!/usr/bin/env bash
# Writes the checksums of a release's files, says what they were built from, and signs both.
#
#   scripts/release/sign.sh RELEASE URL [KEY]      URL: the address of the release's files; KEY: a private key of ssh-keygen
#
# SHA256SUMS lists every file. provenance.json is an in-toto statement (provenance.py) about the same files. Without a key, nothing is signed.
set -euo pipefail
usage="usage: sign.sh RELEASE URL [KEY]"
release=$(readlink -f "${1:?$usage}")
url=${2:?$usage}
key=${3:-}
scripts=$(cd "$(dirname "$0")" && pwd)
cd "$release"
rm -f SHA256SUMS SHA256SUMS.sig provenance.json provenance.json.sig
sums=$(find . -type f -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum)
printf '%s\n' "$sums" >SHA256SUMS
"$scripts/provenance.py" "$url" <SHA256SUMS >provenance.json
if [ -n "$key" ]; then
  # The namespace keeps a signature from being taken for one of something else.
  ssh-keygen -Y sign -f "$key" -n cachalot-release SHA256SUMS provenance.json
else
  echo "not signed: no key was given" >&2
fi
