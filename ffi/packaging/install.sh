#!/usr/bin/env bash
# Installs cachalot's C and C++ interface: headers, libraries, a pkg-config file, a CMake package.
#
#   ffi/packaging/install.sh PREFIX                  builds the release libraries and installs them under PREFIX
#   ffi/packaging/install.sh --from FOLDER PREFIX    installs libraries that were built before
#
# LIBDIR and INCLUDEDIR (default: lib and include) are folders below PREFIX, DESTDIR a root to stage the files in.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
headers=$(cd "$here/../include" && pwd)

from=
if [ "${1:-}" = --from ]; then
  from=${2:?usage: install.sh [--from FOLDER] PREFIX}
  shift 2
fi
prefix=${1:?usage: install.sh [--from FOLDER] PREFIX}
libdir=${LIBDIR:-lib}
includedir=${INCLUDEDIR:-include}

if [ -z "$from" ]; then
  manifest=$(cd "$here/.." && pwd)/Cargo.toml
  root=$(dirname "$(cargo locate-project --workspace --message-format plain --manifest-path "$manifest")")
  # Messages of panics and debug information would name folders of this machine.
  flags="'--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo', '--remap-path-prefix=$root=cachalot'"
  cargo build --manifest-path "$manifest" --release --config "build.rustflags=[$flags]"
  from=${CARGO_TARGET_DIR:-$root/target}/release
fi

# The header's version is the library's: a test compares them.
number() { sed -n "s/^#define CACHALOT_VERSION_$1 \([0-9]*\)$/\1/p" "$headers/cachalot.h"; }
major=$(number MAJOR) minor=$(number MINOR) version=$major.$minor.$(number PATCH)
compatible=$major
if [ "$major" = 0 ]; then
  compatible=0.$minor
fi
# What `rustc --print native-static-libs` names: a test compares them.
system_libraries="-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc"

up=$(printf '%s' "$libdir" | sed 's,[^/][^/]*,..,g')
fill() {
  sed -e "s,@PREFIX@,$prefix,g" -e "s,@LIBDIR@,\${prefix}/$libdir,g" -e "s,@INCLUDEDIR@,\${prefix}/$includedir,g" \
    -e "s,@VERSION@,$version,g" -e "s,@COMPATIBLE_PATTERN@,${compatible//./\\\\\\\\.},g" \
    -e "s,@SONAME@,libcachalot.so.$compatible,g" -e "s,@LIBDIR_TO_INCLUDEDIR@,$up/$includedir,g" \
    -e "s,@SYSTEM_LIBRARIES@,$system_libraries,g" -e "s,@SYSTEM_LIBRARIES_LIST@,${system_libraries// /;},g" "$here/$1"
}

to=${DESTDIR:-}$prefix
lib=$to/$libdir
mkdir -p "$lib/pkgconfig" "$lib/cmake/cachalot" "$to/$includedir"
install -m 644 "$headers/cachalot.h" "$headers/cachalot.hpp" "$headers/cachalot_torch.h" "$to/$includedir"
# shellcheck disable=SC2046 # the names are words
"$here/seal.sh" "$from/libcachalot.a" "$lib/libcachalot.a" $(grep -oh 'cachalot_[a-z_]*(' "$headers"/cachalot{,_torch}.h | tr -d '(' | sort -u)
chmod 644 "$lib/libcachalot.a"
install -m 755 "$from/libcachalot.so" "$lib/libcachalot.so.$version"
strip --strip-unneeded "$lib/libcachalot.so.$version"
ln -sf "libcachalot.so.$version" "$lib/libcachalot.so.$compatible"
ln -sf "libcachalot.so.$compatible" "$lib/libcachalot.so"
fill cachalot.pc.in >"$lib/pkgconfig/cachalot.pc"
fill cachalot-config.cmake.in >"$lib/cmake/cachalot/cachalot-config.cmake"
fill cachalot-config-version.cmake.in >"$lib/cmake/cachalot/cachalot-config-version.cmake"
echo "cachalot $version: $to" >&2
