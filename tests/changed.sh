#!/usr/bin/env bash
# Prints the crates that a change touches, one a line.
#
#   tests/changed.sh [FILE...]           the crates of the files
#   tests/changed.sh --users [FILE...]   with every crate that uses one of them, also for tests
#
# Without files: those that differ from the main branch, committed or not.
set -euo pipefail
cd "$(dirname "$0")/.."

users=
if [ "${1:-}" = --users ]; then users=yes && shift; fi
files=("$@")
if [ $# = 0 ]; then
  base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)
  mapfile -t files < <(git diff --name-only "$base" && git ls-files --others --exclude-standard)
fi

# A line for each crate: its name and its folder.
crates=$(cargo tree --locked --workspace --depth 0 --prefix none | sed -n "s,^\([^ ]*\) v.* ($PWD/\(.*\))$,\1 \2,p")

# Prints the crates whose tests read a file: those that need it without being in its folder, and the crate of the folder.
crates_of() {
  case $1 in
    Cargo.toml | Cargo.lock | clippy.toml) sed 's/ .*//' <<<"$crates" && return ;;
    include/* | examples/* | tests/c_abi/*) echo cachalot && return ;;
    python/* | tests/python/*) echo cachalot-library && return ;;
    tests/traces/*) printf 'cachalot-%s\n' cli replay ;;
    README.md | docs/*) printf 'cachalot-%s\n' cli tests ;;
    *.md) echo cachalot-tests ;;
  esac
  local folder=$1
  while folder=${folder%/*} && [ "$folder" != "$1" ]; do
    local found
    found=$(sed -n "s,^\([^ ]*\) $folder$,\1,p" <<<"$crates")
    if [ -n "$found" ]; then echo "$found" && return; fi
    [[ $folder == */* ]] || return 0
  done
}

changed=$(for file in "${files[@]}"; do crates_of "$file"; done | sort -u)
if [ -n "$users" ] && [ -n "$changed" ]; then
  # `cargo tree` upside down, from each changed crate to those that use it.
  # shellcheck disable=SC2046 # each crate is an argument
  changed=$(cargo tree --locked --workspace --edges all --prefix none $(sed 's/^/--invert /' <<<"$changed") |
    sed -n "s,^\([^ ]*\) v.* ($PWD/.*$,\1,p" | sort -u)
fi
if [ -n "$changed" ]; then echo "$changed"; fi
