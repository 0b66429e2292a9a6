#!/usr/bin/env bash
# Runs PyTorch's CUDA build on the emulated driver, with cachalot as its allocator: everything that needs no kernel.
#
#   tests/pytorch/emulated.sh [VERSION]      # 2.11 or later, which use CUDA 13; default: 2.15
#
# Needs no GPU. Installs PyTorch and CUDA's libraries from the Python package index into
# target/pytorch-emulated/VERSION, 5 GB each. `cachalot emulate` puts the emulated runtime in the place of NVIDIA's.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=${1:-2.15}
root=$PWD
built=${CARGO_TARGET_DIR:-$root/target}
home=$root/target/pytorch-emulated/$version
python=$home/environment/bin/python
sources=$root/tests/pytorch/emulated

[[ $version =~ ^2\.(1[1-9]|[2-9][0-9])$ ]] || { echo "the emulated runtime is CUDA 13's, which PyTorch 2.11 and later use"; exit 2; }

# PyTorch, and cachalot with the library of this workspace.
cargo build --locked -q -p 'cachalot-emulated-*' -p cachalot-library \
  -p cachalot-cli -p cachalot-front
[ -x "$python" ] || python3 -m venv "$home/environment"
pip=("$python" -m pip --quiet --disable-pip-version-check)
"${pip[@]}" install --no-compile "torch==$version.*" numpy 'setuptools>=77.0.3' ipykernel nbclient
python/build_pieces.py "$home/pieces" "$version"
CACHALOT_PIECES=$home/pieces CACHALOT_LIBRARY=$built/debug/libcachalot.so CACHALOT_COMMAND=$built/debug/cachalot \
  CACHALOT_FRONT=$built/debug/libcachalot_front.so CACHALOT_EMULATED=$built/debug \
  "${pip[@]}" install --no-build-isolation --no-deps --no-compile --force-reinstall ./python
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
headers=(-isystem "$site/nvidia/cu13/include" -isystem "$site/triton/backends/nvidia/include")
c++ -std=c++20 -O1 -Wall -fPIC -shared -I ffi/torch -isystem "$site/torch/include" "${headers[@]}" "$sources/observers.cpp" \
  -o "$home/libobservers.so" -L "$site/torch/lib" -lc10_cuda -lc10
c++ -std=c++17 -O1 -Wall -fPIC -shared -x c++ -I "$root/emulated-runtime/include" "${headers[@]}" "$sources/kernels.cu" \
  -o "$home/kernels.so"
export CACHALOT_RECORDER=files:0
export CACHALOT_TEST_OBSERVERS=$home/libobservers.so

export CACHALOT_CACHE=$home/cache PYTHONDONTWRITEBYTECODE=1
failed=0

# on_emulated TEST ...: runs tests in a process of their own.
on_emulated() {
  echo "-- PyTorch $version, ${CACHALOT_TEST_CONFIG:-policy:caching}: $*"
  timeout 900 "$built/debug/cachalot" emulate --devices 1 --memory 4GiB -- "$python" "$sources/run.py" "$@" || failed=1
}

for config in policy:caching policy:caching,expandable_segments:True policy:stitched policy:bfc; do
  CACHALOT_TEST_CONFIG=$config on_emulated test_interface
done
on_emulated test_memory test_settings test_streams test_graphs test_snapshots
on_emulated test_surroundings
on_emulated test_paged
echo "-- PyTorch $version: captured graphs that lend their memory"
LD_LIBRARY_PATH=$home/driver LD_PRELOAD=$home/libtorch_on_emulated.so:$home/cuda/libcudart.so.13 \
  CACHALOT_HOST_KERNELS=$home/kernels.so timeout 900 "$python" "$root/tests/pytorch/test_loans.py" || failed=1
exit $failed
