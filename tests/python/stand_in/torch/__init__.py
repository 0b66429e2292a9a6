"""A stand-in for PyTorch with the few names that the package uses, and their behaviour: no tensors, only its
allocator's door.

Its plug-ins are called as PyTorch calls them, through function pointers.
"""

from __future__ import annotations

import os
import types
from importlib.metadata import distribution

from . import _C, cuda

__all__ = ["_C", "cuda", "device", "version"]

__version__ = "2.11.0+cu130"
version = types.SimpleNamespace(cuda="13.0")


class device:
    """``torch.device``."""

    def __init__(self, name: str, index: int | None = None) -> None:
        self.type, _, number = name.partition(":")
        self.index = int(number) if number else index

    def __repr__(self) -> str:
        return f"device(type={self.type!r}, index={self.index})"


def _import_device_backends() -> None:
    """Calls the entry points of other packages, as PyTorch does since 2.5."""
    for entry in [entry for entry in distribution("cachalot-gpu").entry_points if entry.group == "torch.backends"]:
        entry.load()()


if os.getenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
    _import_device_backends()
