"""cachalot's statistics, under PyTorch's names.

With :class:`cachalot_gpu.torch.MemPool`, an "allocation" of cachalot is a segment of PyTorch. Names
of values in bytes have "bytes" or "memory" in them, and all other values are counts. A device is a
number, ``"cuda:1"``, a ``torch.device``, or ``None`` for the current device. No function here waits
for the device.
"""

from __future__ import annotations

import ctypes
import types
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from .. import _handle, _library
from . import _switch
from ._installed import device_index

if TYPE_CHECKING:
    from ._installed import Device


_FIELDS = ("current", "peak", "allocated", "freed")


def _figures(device: int) -> dict[str, int]:
    """Returns every statistic by its name, cachalot's own included, and none before the first
    allocation."""
    figures: dict[str, int] = {}
    if handle := _handle.peek():

        def visit(_: Any, key: bytes, value: int) -> int:
            figures[key.decode()] = value
            return 0

        _library.library().cachalot_visit_statistics(handle, device, _library.StatVisitor(visit), None)
    return figures


def _figure(key: str, device: Device) -> int:
    """Returns one statistic, which is 0 before the first allocation."""
    value = ctypes.c_int64()
    if handle := _handle.peek():
        _library.library().cachalot_find_statistic(handle, device_index(device), key.encode(), ctypes.byref(value))
    return value.value


def _is_own(key: str) -> bool:
    """Returns whether PyTorch has no statistic of this name. PyTorch's names have no dot, or end
    with a field."""
    return "." in key and key.rpartition(".")[2] not in _FIELDS


def _theirs(device: Device) -> dict[str, int]:
    """Returns every statistic of ``torch.cuda.memory_stats`` by its name."""
    return {key: value for key, value in _figures(device_index(device)).items() if not _is_own(key)}


def statistics(device: Device = None) -> dict[str, int]:
    """Returns cachalot's own statistics of a device, by names such as ``"pages.moved_bytes"``:
    pages of virtual memory, ``reclaim:auto``, ``tune:auto`` and ``policy:planned``. The book lists
    names, units and meanings on the page *Statistics*. The result is empty before the first
    allocation."""
    return {key: value for key, value in _figures(device_index(device)).items() if _is_own(key)}


def memory_stats(device: Device = None) -> dict[str, int]:
    """Returns every statistic of a device as ``torch.cuda.memory_stats``, by names such as
    ``"reserved_bytes.all.peak"`` in alphabetical order. The result is empty before the first
    allocation.

    ``current`` is the present value, and ``peak`` the largest value since
    :func:`reset_peak_memory_stats`. ``allocated`` and ``freed`` are the sums of all increases and
    decreases since :func:`reset_accumulated_memory_stats`.
    """
    return OrderedDict(sorted(_theirs(device).items()))


def metrics() -> str:
    """Returns the metrics of every device as OpenMetrics text, for Prometheus: the version, the
    active settings, memory in total and by pool and stream, peaks, totals, limits. A web server
    sends the text with the type ``application/openmetrics-text; version=1.0.0; charset=utf-8``.
    Before the first allocation the text has no metrics; where :func:`enable` has left PyTorch its
    own allocator, the text has the reason.
    """
    parts: list[bytes] = []
    if handle := _handle.peek():

        def write(_: Any, part: Any, size: int) -> int:
            parts.append(ctypes.string_at(part, size))
            return 0

        _library.library().cachalot_write_metrics(handle, _library.Writer(write), None)
    return b"".join(parts).decode() or _switch.metrics()


def nested_stats(device: Device = None) -> dict[str, Any]:
    """Returns every statistic as ``torch.cuda.memory_stats_as_nested_dict``: dictionaries in
    dictionaries."""
    nested: dict[str, Any] = {}
    for key, value in _theirs(device).items():
        *groups, last = key.split(".")
        inside = nested
        for group in groups:
            inside = inside.setdefault(group, {})
        inside[last] = value
    return nested


def memory_allocated(device: Device = None) -> int:
    """Returns the bytes of all allocated blocks, with their rounded sizes."""
    return _figure("allocated_bytes.all.current", device)


def max_memory_allocated(device: Device = None) -> int:
    """Returns the largest :func:`memory_allocated` since :func:`reset_peak_memory_stats`."""
    return _figure("allocated_bytes.all.peak", device)


def memory_reserved(device: Device = None) -> int:
    """Returns the bytes that cachalot holds from the driver, for allocated and for cached
    memory."""
    return _figure("reserved_bytes.all.current", device)


def max_memory_reserved(device: Device = None) -> int:
    """Returns the largest :func:`memory_reserved` since :func:`reset_peak_memory_stats`."""
    return _figure("reserved_bytes.all.peak", device)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Sets every ``peak`` of a device to its ``current``."""
    if handle := _handle.peek():
        _library.library().cachalot_reset_peaks(handle, device_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Sets every ``allocated`` and ``freed``, and every count of events, of a device to 0."""
    if handle := _handle.peek():
        _library.library().cachalot_reset_accumulated(handle, device_index(device))


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """Returns the table of ``torch.cuda.memory_summary`` with cachalot's statistics, in the form of
    the installed PyTorch."""
    theirs = torch.cuda.memory.memory_summary
    over_ours = types.FunctionType(
        theirs.__code__, {**theirs.__globals__, "memory_stats": memory_stats}, argdefs=theirs.__defaults__
    )
    text: str = over_ours(device_index(device), abbreviated)
    return text
