"""The shim: the small C++ library between PyTorch and cachalot, whose functions take and throw what C cannot.

The wheel brings one that was built without PyTorch. Out of memory is a plain ``RuntimeError`` through it, since
PyTorch's own exception is a class of the installed version. So a shim is built against that version when it is
first wanted, and kept in the user's cache folder under a name that says what it was built from.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
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
    """No shim could be built; the text says why."""


def _cache() -> Path:
    """The folder in which built shims are kept: ``CACHALOT_CACHE``, else one in the user's cache folder."""
    if chosen := os.environ.get("CACHALOT_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cachalot-gpu"


def _abi() -> int:
    """Which of the two ABIs of libstdc++ PyTorch was built with."""
    return int(torch._C._GLIBCXX_USE_CXX11_ABI)


def _name() -> str:
    """The file name of the shim for this PyTorch and this library: it differs when anything that goes in does."""
    ingredients = hashlib.sha256()
    for file in [_files.LIBRARY, _files.SHIM_SOURCE, *sorted(_files.INCLUDE.glob("*.h"))]:
        ingredients.update(file.read_bytes())
    return f"shim-torch-{torch.__version__}-abi{_abi()}-{ingredients.hexdigest()[:16]}.so"


def _compiler() -> str:
    """The C++ compiler: ``CXX``, else the system's."""
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else _COMPILERS
    for name in wanted:
        if found := shutil.which(name):
            return found
    raise _NotBuiltError(f"there is no C++ compiler ({', '.join(wanted)})")


def _compile(to: Path) -> None:
    """Compiles the shim for the installed PyTorch."""
    home = Path(torch.__file__).parent
    command = [_compiler(), "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
    command += ["-DCACHALOT_WITH_TORCH", f"-D_GLIBCXX_USE_CXX11_ABI={_abi()}"]
    command += ["-I", str(_files.INCLUDE), "-isystem", str(home / "include"), str(_files.SHIM_SOURCE), "-o", str(to)]
    command += [str(_files.LIBRARY), "-L", str(home / "lib"), "-lc10", f"-Wl,-rpath,{_files.LIBRARY.parent}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise _NotBuiltError(f"the compiler failed: {' '.join(command)}\n{done.stderr[-2000:]}")


def _built() -> Path:
    """The shim for the installed PyTorch, built unless it is there. Several processes may do so at once: each
    writes a file of its own, and the last to rename it wins with the same contents."""
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
    """The shim to use. Without one for the installed PyTorch, the wheel's, and one warning."""
    _library.library()  # which the shims find by its SONAME
    try:
        return _built()
    except _NotBuiltError as error:
        warnings.warn(
            f"out of memory will be a plain RuntimeError, no torch.OutOfMemoryError: no shim for this PyTorch, {error}",
            RuntimeWarning,
            stacklevel=4,
        )
        return _files.PLAIN_SHIM
