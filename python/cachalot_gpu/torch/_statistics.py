"""How much memory is allocated and held: PyTorch's figures, under PyTorch's names.

They are those of cachalot, whichever of the two ways PyTorch uses it. Under :func:`cachalot_gpu.torch.pool` its
"allocations" are PyTorch's segments. Everything in bytes is named so; all else is a count. Devices are named as
PyTorch allows: a number, ``"cuda:1"``, a ``torch.device``, or ``None``, the current one. Nothing here waits for the
device.
"""

from __future__ import annotations

import ctypes
import types
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from .. import _library
from . import _handle
from ._installed import device_index

if TYPE_CHECKING:
    from ._installed import Device


def _figures(device: int) -> dict[str, int]:
    """Every statistic by its name; none before the first allocation."""
    figures: dict[str, int] = {}
    if handle := _handle.peek():

        def visit(_: Any, key: bytes, value: int) -> int:
            figures[key.decode()] = value
            return 0

        _library.library().cachalot_stats_for_each(handle, device, _library.StatVisitor(visit), None)
    return figures


def _figure(key: str, device: Device) -> int:
    """One statistic; 0 before the first allocation."""
    value = ctypes.c_int64()
    if handle := _handle.peek():
        _library.library().cachalot_stat(handle, device_index(device), key.encode(), ctypes.byref(value))
    return value.value


def memory_stats(device: Device = None) -> dict[str, int]:
    """Every statistic of a device, flattened and sorted by name: ``"reserved_bytes.all.peak"``. Empty before the
    first allocation.

    As ``torch.cuda.memory_stats``: ``current`` is what there is, ``peak`` the most since the peaks were reset,
    ``allocated`` and ``freed`` what was added and taken away since the accumulated ones were.
    """
    return OrderedDict(sorted(_figures(device_index(device)).items()))


def nested_stats(device: Device = None) -> dict[str, Any]:
    """The same as dictionaries in dictionaries, as ``torch.cuda.memory_stats_as_nested_dict``."""
    nested: dict[str, Any] = {}
    for key, value in _figures(device_index(device)).items():
        *groups, last = key.split(".")
        inside = nested
        for group in groups:
            inside = inside.setdefault(group, {})
        inside[last] = value
    return nested


def memory_allocated(device: Device = None) -> int:
    """Bytes of the blocks that the program holds now, sizes rounded up as they are handed out."""
    return _figure("allocated_bytes.all.current", device)


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes that the program has held at a time since :func:`reset_peak_memory_stats`."""
    return _figure("allocated_bytes.all.peak", device)


def memory_reserved(device: Device = None) -> int:
    """Bytes held from the driver now, in use or cached."""
    return _figure("reserved_bytes.all.current", device)


def max_memory_reserved(device: Device = None) -> int:
    """The most bytes that were held from the driver at a time since :func:`reset_peak_memory_stats`."""
    return _figure("reserved_bytes.all.peak", device)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Every ``peak`` becomes what there is now."""
    if handle := _handle.peek():
        _library.library().cachalot_reset_peaks(handle, device_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Every ``allocated`` and ``freed``, and every count of events, begins at 0 again."""
    if handle := _handle.peek():
        _library.library().cachalot_reset_accumulated(handle, device_index(device))


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """The table of ``torch.cuda.memory_summary``, over these figures: it is laid out by the installed PyTorch."""
    theirs = torch.cuda.memory.memory_summary
    over_ours = types.FunctionType(
        theirs.__code__, {**theirs.__globals__, "memory_stats": memory_stats}, argdefs=theirs.__defaults__
    )
    text: str = over_ours(device_index(device), abbreviated)
    return text
