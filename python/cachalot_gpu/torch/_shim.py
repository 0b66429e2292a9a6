"""The shim: a small C++ library between PyTorch and cachalot, which throws exceptions and takes C++
objects.

The wheel has a shim that was built without PyTorch, which reports out of memory as a plain
``RuntimeError``: ``torch.OutOfMemoryError`` is a C++ class of the installed version. The first
``enable()`` therefore builds a shim for the installed version, and keeps the file in the user's
cache folder under a name that says what it was built from.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

import torch

from .. import _files, _library

_COMPILERS = ("c++", "g++", "clang++")
_TIMEOUT_S = 300


class _NotBuiltError(Exception):
    """No shim could be built. The text gives the reason."""


def _cache() -> Path:
    """Returns the folder for built shims: ``CACHALOT_CACHE``, or else one in the user's cache
    folder."""
    if chosen := os.environ.get("CACHALOT_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cachalot-gpu"


def _abi() -> int:
    """Returns which of the two string ABIs of libstdc++ PyTorch was built with."""
    return int(torch._C._GLIBCXX_USE_CXX11_ABI)


def _name() -> str:
    """Returns the file name of the shim, which is different for each PyTorch, library and
    source."""
    ingredients = hashlib.sha256()
    for file in [_files.LIBRARY, _files.SHIM_SOURCE, *sorted(_files.INCLUDE.glob("*.h"))]:
        ingredients.update(file.read_bytes())
    return f"shim-torch-{torch.__version__}-abi{_abi()}-{ingredients.hexdigest()[:16]}.so"


def _compiler() -> list[str]:
    """Returns the command of the C++ compiler: that of ``CXX``, else the system's."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    for command in [chosen] if chosen else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]):
            return command
    raise _NotBuiltError(f"there is no C++ compiler ({chosen[0] if chosen else ', '.join(_COMPILERS)})")


def _compile(to: Path) -> None:
    """Compiles the shim for the installed PyTorch."""
    home = Path(torch.__file__).parent
    command = [*_compiler(), "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
    command += ["-DCACHALOT_WITH_TORCH", f"-D_GLIBCXX_USE_CXX11_ABI={_abi()}"]
    command += ["-I", str(_files.INCLUDE), "-isystem", str(home / "include"), str(_files.SHIM_SOURCE), "-o", str(to)]
    command += [str(_files.LIBRARY), "-L", str(home / "lib"), "-lc10", f"-Wl,-rpath,{_files.LIBRARY.parent}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise _NotBuiltError(f"the compiler failed: {' '.join(command)}\n{done.stderr[-2000:]}")


def _built() -> Path:
    """Returns the shim for the installed PyTorch, and builds it if there is none. Several processes
    may build at once: each writes a file of its own, and the last to rename its file wins with the
    same contents."""
    try:
        shim = _cache() / _name()
        if not shim.exists():
            shim.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=shim.parent, prefix="building-") as folder:
                fresh = Path(folder) / shim.name
                _compile(fresh)
                fresh.replace(shim)
        ctypes.CDLL(str(shim))
    except (OSError, subprocess.SubprocessError) as error:
        raise _NotBuiltError(str(error)) from error
    return shim


def path() -> Path:
    """Returns the shim for the installed PyTorch, or else the wheel's shim, after a warning."""
    _library.library()  # whose functions the shims call
    try:
        return _built()
    except _NotBuiltError as error:
        warnings.warn(
            f"out of memory will be a plain RuntimeError, not torch.OutOfMemoryError: no shim was built, {error}",
            RuntimeWarning,
            stacklevel=4,
        )
        return _files.PLAIN_SHIM
