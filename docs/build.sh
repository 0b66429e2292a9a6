#!/usr/bin/env bash
# Builds the book of docs/ into docs/book/ with mdBook, and the reference of the C headers into docs/book/c/ with doxygen.
# MDBOOK names mdBook; otherwise it is installed into .tools/ (ignored by git). A line says what was skipped.
#
#   docs/build.sh
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

if [ -z "${MDBOOK:-}" ]; then
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  if ! environment=$("$root/scripts/setup/mdbook.sh" 2>"$log"); then
    echo "skipped: the book (mdBook could not be installed: $(tail -n 1 "$log"))"
    exit 0
  fi
  eval "$environment"
fi

# mdBook renders the files below one folder only, and the book has pages from the whole repository. So the chapters are copied to
# a folder with the repository's layout, in which the links between them hold, and the files that they link to next to them.
source=$root/.tools/book
rm -rf "$source" "$root/docs/book"
mkdir -p "$source/src"
cp "$root/docs/book.toml" "$source/"
cd "$root"
git ls-files --cached --others --exclude-standard -- '*.md' docs/pictures 'tests/results/*.svg' 'docs/*.schema.json' include examples ffi/torch LICENSE-MIT LICENSE-APACHE |
  while read -r file; do
    if [ -f "$file" ] && [ "$file" != docs/SUMMARY.md ]; then
      mkdir -p "$source/src/$(dirname "$file")"
      cp "$file" "$source/src/$file"
    fi
  done
# The summary's links are relative to docs/; here to the repository's root.
sed -e 's,](\([^.)]\),](docs/\1,' -e 's,](\.\./,](,' docs/SUMMARY.md >"$source/src/SUMMARY.md"

"$MDBOOK" build --dest-dir "$root/docs/book" "$source"

# The reference of the C and C++ headers, next to the book.
if command -v doxygen >/dev/null; then
  DOXYGEN_OUTPUT=$root/docs/book doxygen docs/Doxyfile
else
  echo "skipped: the reference of the C headers (no doxygen)"
fi
