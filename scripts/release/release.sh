#!/usr/bin/env bash
# Makes a release: builds, tests, packs, lists and signs everything that docs/releasing.md names.
#
#   scripts/release/release.sh [--key KEY] [--url URL] [--rehearsal] OUT
#
# KEY is a private key of ssh-keygen, without which nothing is signed. URL is the address that the files will have, for the recipes;
# default: OUT itself. A rehearsal needs neither the tag nor a passing .ci/run. CACHALOT_PIECES names a folder that has the parts for
# PyTorch already, in a folder for each processor.
set -euo pipefail
usage="usage: release.sh [--key KEY] [--url URL] [--rehearsal] OUT"
key='' url='' rehearsal=''
while [[ ${1:-} == --* ]]; do
  case $1 in
  --key) key=$(readlink -f "${2:?$usage}") && shift ;;
  --url) url=${2:?$usage} && shift ;;
  --rehearsal) rehearsal=yes ;;
  *) echo "$usage" >&2 && exit 2 ;;
  esac
  shift
done
mkdir -p "${1:?$usage}"
out=$(readlink -f "$1")
cd "$(dirname "$0")/../.."
[ -z "$(ls -A "$out")" ] || { echo "$out is not empty" >&2 && exit 1; }
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)

# What is packed is the commit, so nothing else may be there.
[ -z "$(git status --porcelain)" ] || { echo "there are changes without a commit: git status" >&2 && exit 1; }
if [ -z "$rehearsal" ]; then
  [ "$(git tag --points-at HEAD "v$version")" ] || { echo "the commit has no tag v$version" >&2 && exit 1; }
  .ci/run
fi

git archive --format=tar --prefix="cachalot-$version/" HEAD | gzip --no-name >"$out/cachalot-$version.tar.gz"
scripts/release/crates.sh "$out/crates"
for processor in x86_64 aarch64; do
  binaries=$(scripts/release/binaries.sh "$processor")
  scripts/release/archive.sh --from "$binaries" "$out" "$processor"
  scripts/release/packages.sh "$binaries" "$out" "$processor"
  CACHALOT_BINARIES=$(readlink -f "$binaries") CACHALOT_PIECES=${CACHALOT_PIECES:+$CACHALOT_PIECES/$processor} \
    python/release.sh "$out" "$processor"
done
scripts/release/recipes.sh "$out" "${url:-file://$out}"
scripts/release/sign.sh "$out" "${url:-file://$out}" "$key"
(cd "$out" && find . -type f -printf '%P %s\n' | sort | column -t)
