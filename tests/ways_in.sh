#!/usr/bin/env bash
# Installs a release in each way of docs/install.md, in a clean Debian of its own, and uses it there: a campaign, and no part of tests/run.
#
#   tests/ways_in.sh RELEASE [WAY...]      RELEASE: the folder that scripts/release/release.sh wrote; WAY: a name below; default: all
#
# PROCESSOR=aarch64 takes that processor's files, in a Debian of its own (tests/clean_root.sh): the ways archive, deb, rpm and wheel.
# Prints a line for each way: used, checked (by a reader of the recipe alone), or not here, with the reason. Needs root, mmdebstrap and
# Debian's packages. Ways from source compile on this machine, in a new home, with its Rust. VCPKG_ROOT and SPACK_ROOT name these
# programs, which no registry has.
set -euo pipefail
release=$(readlink -f "${1:?usage: ways_in.sh RELEASE [WAY...]}")
shift
cd "$(dirname "$0")/.."
. tests/clean_root.sh
root=$PWD
store=$root/target/ways
processor=${PROCESSOR:-x86_64}
case $processor in
x86_64) architecture=amd64 ;;
aarch64) architecture=arm64 ;;
esac
export CLEAN_ARCHITECTURE=$architecture
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
ways=(archive deb rpm wheel conan vcpkg spack conda nix container)
if [ $# -gt 0 ]; then ways=("$@"); fi
mkdir -p "$store"
work=$(mktemp -d -p "$store")
trap 'rm -rf "$work"' EXIT

# What every way has to do in the end. `cachalot` is the installed command, and the flags compile a program.
use_command='cachalot --version; cachalot replay --check /repository/tests/traces/lstm_varlen.csv.gz >/dev/null; echo the command runs'
use_pkg_config='cd /tmp
for mode in --libs "--static --libs"; do
  cc -std=c11 /repository/tests/c_abi/consumer/consumer.c $(pkg-config --cflags $mode cachalot) -o consumer
  ./consumer
done'
use_cmake='cmake -S /repository/tests/c_abi/consumer -B /tmp/build $cmake_flags >/dev/null
cmake --build /tmp/build >/dev/null
for program in /tmp/build/consumer_*; do $program; done'

# clean_here PACKAGES SCRIPT: runs a script in a clean root that shows the release and the repository.
clean_here() { clean "$1" "$2" "$release:/release" "$root:/repository"; }
compilers=gcc,g++,cmake,pkg-config,make

# from_source COMMAND...: runs a command in a new home, with this machine's Rust. cargo's folder is shared by the ways, and the code is not
# optimised, which takes most of the time of a build.
from_source() {
  env -i HOME="$work/home" PATH="$PATH" CARGO_HOME="${CARGO_HOME:-$HOME/.cargo}" RUSTUP_HOME="${RUSTUP_HOME:-$HOME/.rustup}" \
    CARGO_TARGET_DIR="$store/cargo" CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 "$@"
}

way_archive() {
  clean_here "$compilers" "
    tar -xzf /release/cachalot-$version-linux-$processor.tar.gz -C /opt
    prefix=/opt/cachalot-$version-linux-$processor
    export PATH=\$prefix/bin:\$PATH PKG_CONFIG_PATH=\$prefix/lib/pkgconfig LD_LIBRARY_PATH=\$prefix/lib cmake_flags=-DCMAKE_PREFIX_PATH=\$prefix
    $use_command; $use_pkg_config; $use_cmake
    \$prefix/share/cachalot/uninstall.sh
    test ! -e \$prefix/lib"
}

way_deb() {
  clean_here "$compilers" "
    dpkg --install /release/cachalot_${version}_$architecture.deb
    export cmake_flags=
    $use_command; $use_pkg_config; $use_cmake
    dpkg --purge cachalot
    test ! -e /usr/lib/cachalot"
}

# Debian's rpm knows no package of the system, and Debian does not look into lib64: what the package needs is not looked for.
way_rpm() {
  clean_here "rpm,$compilers" "
    rpm --checksig --nosignature /release/cachalot-$version-1.$processor.rpm
    rpm --install --nodeps /release/cachalot-$version-1.$processor.rpm
    export PKG_CONFIG_PATH=/usr/lib64/pkgconfig LD_LIBRARY_PATH=/usr/lib64 cmake_flags=-Dcachalot_DIR=/usr/lib64/cmake/cachalot
    $use_command; $use_pkg_config; $use_cmake
    rpm --erase cachalot
    test ! -e /usr/lib/cachalot"
}

way_wheel() {
  clean_here "python3-venv" "
    python3 -m venv /opt/python
    cd /tmp
    export PATH=/opt/python/bin:\$PATH
    pip install --quiet --no-index /release/cachalot_gpu-$version-py3-none-manylinux*_$processor.whl
    $use_command
    python -c 'import cachalot_gpu; cachalot_gpu.check(\"policy:stitched\"); print(cachalot_gpu.version())'
    cachalot emulate -- python -m cachalot_gpu doctor || true
    # nvidia-ml-py asks the emulated NVML of the wheel.
    pip install --quiet nvidia-ml-py
    cachalot emulate --devices 3 --memory 80GiB -- python -c '
import pynvml as nvml
nvml.nvmlInit()
devices = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
print([(nvml.nvmlDeviceGetName(device), nvml.nvmlDeviceGetMemoryInfo(device).total >> 30) for device in devices])
assert [nvml.nvmlDeviceGetMemoryInfo(device).total for device in devices] == [80 << 30] * 3'"
}

way_conan() {
  eval "$(scripts/setup/conan.sh 2>/dev/null)"
  cp -r "$release/recipes/conan" "$work/conan"
  export CONAN_HOME=$work/conan-home
  from_source CONAN_HOME="$CONAN_HOME" "$CONAN" profile detect
  from_source CONAN_HOME="$CONAN_HOME" "$CONAN" create "$work/conan" --version "$version"
  # Where it puts a file beside the project's own.
  (cd "$work" && from_source CONAN_HOME="$CONAN_HOME" "$CONAN" install --requires="cachalot/$version" --generator=CMakeDeps \
    --generator=CMakeToolchain --output-folder="$work/generated")
  consumed_with "-DCMAKE_TOOLCHAIN_FILE=$work/generated/conan_toolchain.cmake" -DCMAKE_BUILD_TYPE=Release
}

way_vcpkg() {
  [ -x "${VCPKG_ROOT:-}/vcpkg" ] || not_here "VCPKG_ROOT names no vcpkg"
  eval "$(scripts/setup/manylinux.sh 2>/dev/null)" # patchelf
  eval "$(scripts/setup/cmake.sh 2>/dev/null)"
  export PATH=${CMAKE%/*}:$PATH
  from_source VCPKG_FORCE_SYSTEM_BINARIES=1 "$VCPKG_ROOT/vcpkg" install cachalot --overlay-ports="$release/recipes/vcpkg" \
    --x-install-root="$work/installed" --x-buildtrees-root="$work/trees" --x-packages-root="$work/packages" --downloads-root="$work/downloads"
  consumed_with "-DCMAKE_TOOLCHAIN_FILE=$VCPKG_ROOT/scripts/buildsystems/vcpkg.cmake" "-D_VCPKG_INSTALLED_DIR=$work/installed" \
    -DVCPKG_MANIFEST_MODE=OFF
}

way_spack() {
  if [ ! -x "${SPACK_ROOT:-}/bin/spack" ]; then
    python3 -m py_compile "$release/recipes/spack/package.py"
    checked "Python reads it; SPACK_ROOT names no Spack"
  fi
  mkdir -p "$work/spack/packages/cachalot"
  printf 'repo:\n  namespace: release\n' >"$work/spack/repo.yaml"
  cp "$release/recipes/spack/package.py" "$work/spack/packages/cachalot"
  from_source "$SPACK_ROOT/bin/spack" repo add "$work/spack"
  from_source "$SPACK_ROOT/bin/spack" external find rust python gcc
  from_source "$SPACK_ROOT/bin/spack" install cachalot
}

way_conda() {
  eval "$(scripts/setup/manylinux.sh 2>/dev/null)" # patchelf
  eval "$(scripts/setup/rattler_build.sh 2>/dev/null)"
  from_source PYTHONPATH="$RATTLER_BUILD" python3 tests/conda_recipe.py "$release/recipes/conda/recipe.yaml" "$work/conda"
}

way_nix() {
  command -v nix-instantiate >/dev/null || not_here "no nix-instantiate: Debian's nix-bin"
  nix-instantiate --parse "$release/recipes/nix/flake.nix" >/dev/null
  checked "parsed by nix-instantiate; nixpkgs is in no registry that is reached"
}

way_container() {
  command -v buildah >/dev/null || not_here "no buildah: Debian's buildah"
  clean_here python3-venv true
  export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
  local base
  base=$(buildah from scratch)
  buildah add "$base" "$store/root-$architecture-python3-venv" / >/dev/null
  buildah commit --quiet "$base" base >/dev/null
  buildah bud --quiet --build-arg BASE=localhost/base --tag cachalot -f "$release/recipes/container/Containerfile" "$release" >/dev/null
  base=$(buildah from localhost/cachalot)
  buildah run "$base" -- cachalot --version
}

# consumed_with FLAG...: compiles and runs programs by CMake with these flags.
consumed_with() {
  eval "$(scripts/setup/cmake.sh 2>/dev/null)"
  "$CMAKE" -S tests/c_abi/consumer -B "$work/consumer" "$@" >/dev/null
  "$CMAKE" --build "$work/consumer" >/dev/null
  for program in "$work"/consumer/consumer_*; do "$program"; done
}

checked() { echo "checked|$1" >"$work/verdict" && exit 0; }
not_here() { echo "not here|$1" >"$work/verdict" && exit 0; }

failed=0
for way in "${ways[@]}"; do
  rm -f "$work/verdict"
  started=$SECONDS
  # Not in the condition, where a failure would not end a way.
  set +e
  (set -e; "way_$way") >"$store/$way.log" 2>&1 </dev/null
  code=$?
  set -e
  if [ "$code" = 0 ]; then
    verdict=$(cat "$work/verdict" 2>/dev/null || echo "used|")
  else
    verdict="failed|$store/$way.log: $(tail -n 1 "$store/$way.log")"
    failed=1
  fi
  echo "$way|${verdict%%|*}|$((SECONDS - started)) s|${verdict#*|}"
done
exit $failed
