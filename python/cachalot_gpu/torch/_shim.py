"""The C++ between PyTorch and cachalot: the shim, and PyTorch's whole allocator interface.

A release has both compiled for every known PyTorch. For another one, they are compiled by the first
``enable()``, and kept in the user's cache folder under a name that says what the file was built
from. The wheel also has a shim that was built
without PyTorch, which reports out of memory as a plain ``RuntimeError``:
``torch.OutOfMemoryError`` is a C++ class of the installed version.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from .. import _files, _library, _warning
from . import _pieces

_COMPILERS = ("c++", "g++", "clang++")
_TIMEOUT_S = 300
_WHOLE_SINCE, _WHOLE_UNTIL = (2, 6), (2, 15)
"""The versions of PyTorch for which the whole allocator is written."""
_PINNED_SINCE, _PINNED_UNTIL = (2, 8), (2, 15)
"""The versions of PyTorch for which the allocator of pinned memory is written."""
WHOLE_VERSIONS = f"{'.'.join(map(str, _WHOLE_SINCE))} to {'.'.join(map(str, _WHOLE_UNTIL))}"
"""The versions of the whole allocator in words."""


class NotBuiltError(Exception):
    """No file could be built. The text gives the reason."""


def _cache() -> Path:
    """Returns the folder for built files: ``CACHALOT_CACHE``, or else one in the user's cache
    folder."""
    if chosen := os.environ.get("CACHALOT_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cachalot-gpu"


def _abi() -> int:
    """Returns which of the two string ABIs of libstdc++ PyTorch was built with."""
    return int(torch._C._GLIBCXX_USE_CXX11_ABI)


def _name(kind: str) -> str:
    """Returns the file name of a built file, which is different for each PyTorch, library and
    source."""
    ingredients = hashlib.sha256()
    for file in [_files.LIBRARY, *sorted(path for path in _files.SOURCE.rglob("*") if path.is_file())]:
        ingredients.update(file.read_bytes())
    return f"{kind}-torch-{torch.__version__}-abi{_abi()}-{ingredients.hexdigest()[:16]}.so"


def _compiler() -> list[str]:
    """Returns the command of the C++ compiler: that of ``CXX``, else the system's."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    for command in [chosen] if chosen else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]):
            return command
    raise NotBuiltError(f"there is no C++ compiler ({chosen[0] if chosen else ', '.join(_COMPILERS)})")


def _torch_home() -> Path:
    """Returns the folder of the installed PyTorch."""
    return Path(torch.__file__).parent


def _cuda_headers() -> list[Path]:
    """Returns the folders with headers of CUDA: those of the packages that PyTorch depends on, then
    those of an installed toolkit."""
    packages = _torch_home().parent
    folders = [packages / "nvidia" / name / "include" for name in ("cu13", "cuda_runtime", "cuda_nvcc")]
    folders.append(packages / "triton/backends/nvidia/include")
    if nvcc := shutil.which("nvcc"):
        folders.append(Path(nvcc).resolve().parents[1] / "include")
    folders += [Path(home) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    folders.append(Path("/usr/local/cuda/include"))
    found = [folder for folder in folders if folder.is_dir()]
    for header in ("cuda_runtime_api.h", "crt/host_defines.h"):
        if not any((folder / header).is_file() for folder in found):
            raise NotBuiltError(f"there is no {header}: set CUDA_HOME to a CUDA toolkit")
    return found


def _cuda_options() -> list[str]:
    """Returns the compiler's options for CUDA's headers."""
    return [option for folder in _cuda_headers() for option in ("-isystem", str(folder))]


def _compile(sources: list[Path], options: list[str], to: Path) -> None:
    """Compiles a shared library for the installed PyTorch."""
    home = _torch_home()
    command = [*_compiler(), "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
    command += ["-DCACHALOT_WITH_TORCH", f"-D_GLIBCXX_USE_CXX11_ABI={_abi()}"]
    command += ["-I", str(_files.SOURCE), "-isystem", str(home / "include")]
    command += [*map(str, sources), "-o", str(to), str(_files.LIBRARY), "-L", str(home / "lib")]
    command += [*options, "-lc10", f"-Wl,-rpath,{_files.LIBRARY.parent}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise NotBuiltError(f"the compiler failed: {' '.join(command)}\n{done.stderr[-2000:]}")


def _built(kind: str, sources: list[Path], options: list[str], *, cuda: bool = False) -> Path:
    """Returns a file for the installed PyTorch: the package's own piece, or else one that is built
    here. Several processes may build at once: each writes its own file, and the last to rename its
    file wins with the same contents."""
    if piece := _loadable(kind):
        return piece
    try:
        built = _cache() / _name(kind)
        if not built.exists():
            built.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=built.parent, prefix="building-") as folder:
                fresh = Path(folder) / built.name
                _compile(sources, [*options, *(_cuda_options() if cuda else [])], fresh)
                fresh.replace(built)
        ctypes.CDLL(str(built))
    except (OSError, subprocess.SubprocessError) as error:
        raise NotBuiltError(str(error)) from error
    return built


def _loadable(kind: str) -> Path | None:
    """Returns the package's own piece for the installed PyTorch, if it can be loaded."""
    if piece := _pieces.fitting(kind, _abi()):
        try:
            ctypes.CDLL(str(piece))
            return piece
        except OSError as error:
            _warning.warn(f"a part of the package cannot be loaded, and is compiled here: {error}")
    return None


def _require_interface(since: tuple[int, int], until: tuple[int, int], header: str) -> None:
    """Raises an error unless an interface of the installed PyTorch is known, and its headers are
    there."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if not since <= version <= until:
        first, last, next_one = (".".join(map(str, bound)) for bound in (since, until, (until[0], until[1] + 1)))
        raise NotBuiltError(
            f"the interface of PyTorch {torch.__version__} is unknown: {first} to {last} are known, "
            f"install one of them: pip install 'torch>={first},<{next_one}'"
        )
    if not (_torch_home() / "include" / header).is_file():
        raise NotBuiltError("this PyTorch has no headers")
    _library.library()  # whose functions the file calls


def whole() -> Path:
    """Returns the library with PyTorch's whole allocator interface.

    Raises:
        NotBuiltError: this version of PyTorch has another interface, or the library cannot be
            built.
    """
    if os.environ.get("CACHALOT_TORCH_PLUGIN"):
        raise NotBuiltError("CACHALOT_TORCH_PLUGIN asks for the plug-in")
    _require_interface(_WHOLE_SINCE, _WHOLE_UNTIL, "c10/cuda/CUDACachingAllocator.h")
    options = ["-lc10_cuda", "-ltorch_cuda"]
    return _built("whole", [_files.SHIM_SOURCE, _files.SOURCE / "whole/allocator.cpp"], options, cuda=True)


def pinned() -> Path:
    """Returns the library with PyTorch's interface of allocators of pinned memory.

    Raises:
        NotBuiltError: this version of PyTorch has another interface or none, or the library cannot
            be built.
    """
    _require_interface(_PINNED_SINCE, _PINNED_UNTIL, "ATen/core/CachingHostAllocator.h")
    options = ["-lc10_cuda", "-ltorch_cpu", "-ltorch_cuda"]
    return _built("pinned", [_files.SOURCE / "pinned/allocator.cpp"], options, cuda=True)


def path() -> Path:
    """Returns the shim for the installed PyTorch, or else the wheel's shim, after a warning."""
    _library.library()  # whose functions the shims call
    try:
        return _built("shim", [_files.SHIM_SOURCE], [])
    except NotBuiltError as error:
        _warning.warn(
            f"out of memory will be a plain RuntimeError, not torch.OutOfMemoryError: no shim was built, {error}"
        )
        return _files.PLAIN_SHIM
