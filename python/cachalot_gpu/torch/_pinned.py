"""cachalot in the place of PyTorch's allocator of pinned memory."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from .. import _settings, errors
from . import _installed, _shim

_SINCE = (2, 8)
"""The first version of PyTorch in which an allocator of pinned memory can be set."""

_in_place: list[ctypes.CDLL] = []
"""The library with the allocator, after it was put in place."""


def in_place() -> bool:
    """Returns whether cachalot allocates PyTorch's pinned memory."""
    return bool(_in_place)


def _require_setter() -> None:
    """Raises an error if the installed PyTorch has a fixed allocator of pinned memory."""
    if torch.version.cuda is None:
        raise errors.UnavailableError(f"PyTorch {torch.__version__} was built without CUDA")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _SINCE:
        since = ".".join(map(str, _SINCE))
        raise errors.UnavailableError(
            f"PyTorch {torch.__version__} sets no allocator of pinned memory: {since} or later is needed"
        )


def built(config: str) -> Path:
    """Returns the library with the allocator, after the checks that can be made before anything is
    changed.

    Raises:
        ConfigurationError: the settings have a mistake.
        UnavailableError: PyTorch has no CUDA, sets no allocator of pinned memory, or finds no GPU;
            or nothing can be built for the installed PyTorch.
    """
    _settings.check(config)
    _require_setter()
    try:
        path = _shim.pinned()
    except _shim.NotBuiltError as error:
        raise errors.UnavailableError(f"cachalot cannot allocate PyTorch's pinned memory: {error}") from error
    _installed.require_gpu()
    return path


def install(path: Path, config: str) -> None:
    """Puts cachalot in the place of PyTorch's allocator of pinned memory.

    Raises:
        UnavailableError: PyTorch refuses. The text has its reason.
    """
    library = ctypes.CDLL(str(path))
    library.cachalot_torch_install_pinned.restype = ctypes.c_char_p
    if failure := library.cachalot_torch_install_pinned(_settings.encoded(config)):
        raise errors.UnavailableError(failure.decode(errors="replace").splitlines()[0])
    _in_place.append(library)
