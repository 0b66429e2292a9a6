#!/usr/bin/env bash
# Builds the book of docs/ into docs/book/, with mdBook from .tools/ (ignored by git). Installs mdBook there, pinned, if it is
# missing, or says in one line that the book was skipped.
#
#   docs/build.sh
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
version=0.5.4
mdbook=$root/.tools/mdbook/$version/bin/mdbook

if [ ! -x "$mdbook" ]; then
  # The tool is run once a build: a fast compilation is worth more than fast code.
  if ! cargo install mdbook --version "$version" --locked --no-default-features --features search \
    --root "$root/.tools/mdbook/$version" --target-dir "$root/.tools/mdbook/build" \
    --config profile.release.opt-level=1 --config profile.release.lto=false 2>"$root/.tools-mdbook.log"; then
    echo "skipped: the book (mdBook $version could not be installed: $(tail -n 1 "$root/.tools-mdbook.log"))"
    rm -f "$root/.tools-mdbook.log"
    exit 0
  fi
  rm -rf "$root/.tools-mdbook.log" "$root/.tools/mdbook/build"
fi

# mdBook renders the files below one folder only, and the book has pages from the whole repository. So the chapters are copied to
# a folder with the repository's layout, in which the links between them hold, and the files that they link to beside them.
source=$root/.tools/mdbook/source
rm -rf "$source" "$root/docs/book"
mkdir -p "$source/src"
cp "$root/docs/book.toml" "$source/"
cd "$root"
git ls-files --cached --others --exclude-standard -- '*.md' include examples ffi/torch LICENSE-MIT LICENSE-APACHE |
  while read -r file; do
    if [ -f "$file" ] && [ "$file" != docs/SUMMARY.md ]; then
      mkdir -p "$source/src/$(dirname "$file")"
      cp "$file" "$source/src/$file"
    fi
  done
# The summary's links are relative to docs/; here to the repository's root.
sed -e 's,](\([^.)]\),](docs/\1,' -e 's,](\.\./,](,' docs/SUMMARY.md >"$source/src/SUMMARY.md"

"$mdbook" build --dest-dir "$root/docs/book" "$source"
