#!/usr/bin/env bash
# Writes the recipes of other package managers for a release: the templates of ffi/packaging/recipes with the version, and the addresses
# and checksums of the release's own files.
#
#   scripts/release/recipes.sh RELEASE URL      RELEASE: the folder of the release; URL: the address that its files will have
#
# RELEASE/recipes has them. No recipe is written by hand, so none differs from the release.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
usage="usage: recipes.sh RELEASE URL"
release=$(readlink -f "${1:?$usage}")
url=${2:?$usage}
stated() { sed -n "s/^$1 = \"\(.*\)\"$/\1/p" "$root/Cargo.toml"; }
version=$(stated version)
source=cachalot-$version.tar.gz
sum() { "$1" "$release/$source" | cut -d ' ' -f 1; }

rm -rf "$release/recipes"
cp -r "$root/ffi/packaging/recipes" "$release/recipes"
cp "$root/ffi/packaging/conan/conanfile.py" "$release/recipes/conan"
cp "$root/Cargo.lock" "$release/recipes/nix"
find "$release/recipes" -name '*.in' | while read -r template; do
  sed -e "s,@VERSION@,$version,g" -e "s,@RUST_VERSION@,$(stated rust-version),g" -e "s,@HOME_URL@,$url,g" \
    -e "s,@SOURCE_NAME@,$source,g" -e "s,@SOURCE_URL@,$url/$source,g" \
    -e "s,@SOURCE_SHA256@,$(sum sha256sum),g" -e "s,@SOURCE_SHA512@,$(sum sha512sum),g" "$template" >"${template%.in}"
  rm "$template"
done
