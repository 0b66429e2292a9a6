#!/usr/bin/env bash
# Installs cachalot's C and C++ interface: headers, libraries, pkg-config files, a CMake package, licences.
#
#   ffi/packaging/install.sh PREFIX                  builds the release libraries and installs them under PREFIX
#   ffi/packaging/install.sh --from FOLDER PREFIX    installs libraries that were built before
#   ffi/packaging/install.sh --command [...] PREFIX  the command `cachalot` with its pages and completions, its library for `cachalot run`, and the
#                                                    emulated libraries, as well
#
# For another processor (scripts/release/processor.sh), CROSS_COMPILE is the prefix of its tools, and EMULATOR runs its programs. LIBDIR and INCLUDEDIR (default: lib and include) are folders below PREFIX, DESTDIR a root to stage the files in.
# PREFIX/share/cachalot/manifest.txt lists what was installed; uninstall.sh next to it removes these files.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
crate=$(cd "$here/.." && pwd)
headers=$(cd "$crate/include" && pwd)

usage="usage: install.sh [--command] [--from FOLDER] PREFIX"
crates=(cachalot-library)
from=
while [[ ${1:-} == --* ]]; do
  case $1 in
  --command) crates+=(cachalot-cli cachalot-front 'cachalot-emulated-*') ;;
  --help)
    echo "$usage"
    exit 0
    ;;
  --from)
    from=${2:?$usage}
    shift
    ;;
  *)
    echo "$1 is no option; $usage" >&2
    exit 2
    ;;
  esac
  shift
done
if [ -z "${1:-}" ]; then
  echo "$usage" >&2
  exit 2
fi
prefix=$1
if [[ $prefix != /* ]]; then
  echo "PREFIX is $prefix: it must be an absolute path, because pkg-config and CMake find the files by it" >&2
  exit 2
fi
libdir=${LIBDIR:-lib}
includedir=${INCLUDEDIR:-include}
if [ -z "$from" ]; then
  from=$("$here/build.sh" release "${crates[@]:1}")
fi

# The header's version is the library's: a test compares them.
number() { sed -n "s/^#define CACHALOT_VERSION_$1 \([0-9]*\)$/\1/p" "$headers/cachalot.h"; }
major=$(number MAJOR) minor=$(number MINOR) version=$major.$minor.$(number PATCH)
if ! [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]]; then
  echo "$headers/cachalot.h states no version, but \`$version\`" >&2
  exit 1
fi
compatible=$major
if [ "$major" = 0 ]; then
  compatible=0.$minor
fi
# What `rustc --print native-static-libs` names: a test compares them.
system_libraries="-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc"

to=${DESTDIR:-}$prefix
mkdir -p "$to/share/cachalot"
# An earlier version's files go, so that the manifest lists everything that is cachalot's.
if [ -f "$to/share/cachalot/manifest.txt" ]; then
  bash "$here/uninstall.sh" "$to"
fi

installed=()
# put MODE FILE TARGET: installs a file at a path below the prefix.
put() {
  install -D -m "$1" "$2" "$to/$3"
  installed+=("$3")
}
# link TARGET NAME: makes a symbolic link to a file next to it.
link() {
  ln -sf "$1" "$to/$2"
  installed+=("$2")
}
up=$(printf '%s' "$libdir" | sed 's,[^/][^/]*,..,g')
# fill TEMPLATE TARGET: writes a template's text with this installation's values.
fill() {
  mkdir -p "$to/$(dirname "$2")"
  sed -e "s,@UP@,$up,g" -e "s,@LIBDIR@,$libdir,g" -e "s,@INCLUDEDIR@,$includedir,g" -e "s,@VERSION@,$version,g" \
    -e "s,@COMPATIBLE_PATTERN@,${compatible//./\\\\\\\\.},g" -e "s,@SYSTEM_LIBRARIES@,$system_libraries,g" \
    "$here/$1" >"$to/$2"
  installed+=("$2")
}

for header in "$headers"/*.h* "$headers"/cachalot/*.h*; do
  put 644 "$header" "$includedir/${header#"$headers/"}"
done
mkdir -p "$to/$libdir"
# shellcheck disable=SC2046 # the names are words
"$here/seal.sh" "$from/libcachalot.a" "$to/$libdir/libcachalot.a" \
  $(grep -oh 'cachalot_[a-z_]*(' "$headers"/cachalot{,_torch}.h "$headers"/cachalot/*.h | tr -d '(' | sort -u)
chmod 644 "$to/$libdir/libcachalot.a"
installed+=("$libdir/libcachalot.a")
put 755 "$from/libcachalot.so" "$libdir/libcachalot.so.$version"
strip=${CROSS_COMPILE:-}strip
"$strip" --strip-unneeded "$to/$libdir/libcachalot.so.$version"
link "libcachalot.so.$version" "$libdir/libcachalot.so.$compatible"
link "libcachalot.so.$compatible" "$libdir/libcachalot.so"
for package in cachalot cachalot-shared; do
  fill "$package.pc.in" "$libdir/pkgconfig/$package.pc"
done
for file in cachalot-config cachalot-config-version; do
  fill "$file.cmake.in" "$libdir/cmake/cachalot/$file.cmake"
done
put 644 "$here/cachalot-targets.cmake" "$libdir/cmake/cachalot/cachalot-targets.cmake"
if [ "${#crates[@]}" -gt 1 ]; then
  # The command looks for the library in `../lib/cachalot`, wherever LIBDIR is.
  front=lib/cachalot/libcachalot_front.so
  put 755 "$from/cachalot" bin/cachalot
  put 755 "$from/${front##*/}" "$front"
  "$strip" --strip-unneeded "$to/bin/cachalot" "$to/$front"
  for emulated in "$from"/libcachalot_emulated_*.so; do
    # Not in every build.
    [ -e "$emulated" ] || continue
    # The loader's name of each is in the file.
    name=$(LC_ALL=C readelf --dynamic "$emulated" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
    put 755 "$emulated" "lib/cachalot/emulated/$name"
    "$strip" --strip-unneeded "$to/lib/cachalot/emulated/$name"
  done
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "${#crates[@]}" -gt 1 ]; then
  # The command writes its own pages and completions, if it runs here.
  if ${EMULATOR:-} "$to/bin/cachalot" man --into "$work/man" >/dev/null 2>&1; then
    for page in "$work"/man/*; do
      put 644 "$page" "share/man/man1/${page##*/}"
    done
    for shell in bash:share/bash-completion/completions/cachalot zsh:share/zsh/site-functions/_cachalot \
      fish:share/fish/vendor_completions.d/cachalot.fish; do
      ${EMULATOR:-} "$to/bin/cachalot" completions "${shell%%:*}" >"$work/completions"
      put 644 "$work/completions" "${shell#*:}"
    done
  else
    echo "left out: the manual pages and the completions, because $to/bin/cachalot does not run here" >&2
  fi
fi
for file in README.md LICENSE-MIT LICENSE-APACHE; do
  put 644 "$crate/$file" "share/doc/cachalot/$file"
done
# The licences of the crates in what was installed. Cargo and the repository know them; a package of the crate alone does not.
if said=$(python3 "$crate/../scripts/release/notices.py" "$work" "${crates[@]}" 2>&1); then
  for file in THIRD-PARTY.txt sbom.cdx.json; do
    put 644 "$work/$file" "share/doc/cachalot/$file"
  done
else
  echo "left out: THIRD-PARTY.txt and sbom.cdx.json, which need python3, cargo and the repository: ${said##*$'\n'}" >&2
fi
put 755 "$here/uninstall.sh" share/cachalot/uninstall.sh
printf '%s\n' "${installed[@]}" share/cachalot/manifest.txt >"$to/share/cachalot/manifest.txt"
echo "cachalot $version: $to" >&2
