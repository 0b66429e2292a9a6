# Sourced by the scripts next to it: installs pinned packages from PyPI into .tools/, which git ignores.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
tools=$root/.tools

# unpack_wheels DIRECTORY PACKAGE==VERSION...: puts the packages into .tools/DIRECTORY, unless the same are there.
unpack_wheels() {
  local to=$tools/$1
  shift
  if [ "$(cat "$to/.unpacked" 2>/dev/null)" = "$*" ]; then
    return
  fi
  rm -rf "$to"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
    --no-deps --no-compile --only-binary=:all: --target "$to" "$@" >&2
  printf '%s' "$*" >"$to/.unpacked"
}
