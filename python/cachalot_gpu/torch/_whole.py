"""The whole allocator: PyTorch's own functions for statistics, snapshots, pools and settings work,
because cachalot implements every method of PyTorch's allocator interface."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from .. import _library, _settings, errors
from . import _shim

_in_place: list[ctypes.CDLL] = []
"""The library with the allocator, after it was put in place."""


def in_place() -> bool:
    """Returns whether the whole allocator is PyTorch's allocator."""
    return bool(_in_place)


def _follow_settings() -> None:
    """Passes settings that the program gives to PyTorch to cachalot as well, in versions of PyTorch
    whose C++ has no hook for it."""
    name = "_cuda_cudaCachingAllocator_set_allocator_settings"
    if hasattr(torch._C, "_accelerator_setAllocatorSettings") or not hasattr(torch._C, name):
        return
    native = getattr(torch._C, name)

    def set_both(settings: str) -> Any:
        native(settings)
        _library.library().cachalot_torch_configure(_settings.encoded(settings))

    setattr(torch._C, name, set_both)


def install(too_late: str) -> None:
    """Puts the whole allocator in place.

    Raises:
        NotBuiltError: it cannot be built for the installed PyTorch.
        UnavailableError: PyTorch has used its own allocator.
    """
    library = ctypes.CDLL(str(_shim.whole()))
    library.cachalot_torch_install.restype = ctypes.c_char_p
    if failure := library.cachalot_torch_install():
        raise errors.UnavailableError(f"{too_late} ({failure.decode(errors='replace').splitlines()[0]})")
    _in_place.append(library)
    _follow_settings()
