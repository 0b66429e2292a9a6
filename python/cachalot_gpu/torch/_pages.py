"""Pages of virtual memory: upkeep at quiet moments, what the pages are used for and what they cost."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from .. import _handle, _library
from . import _statistics
from ._installed import device_index

if TYPE_CHECKING:
    from ._installed import Device


def maintain(max_us: int = 2000, device: Device = None) -> bool:
    """Does what requests under ``policy:stitched`` have put off, for about ``max_us`` microseconds
    of the driver's time: removes the mappings that moved pages have left, and returns memory beyond
    the budget to the driver. Under ``reclaim:auto``, gives idle memory back to the driver by what it
    is worth. With ``tune:auto`` settings become active here. Never waits for the device. Returns
    whether something is left for another call. In other configurations there is nothing to do."""
    more = ctypes.c_int()
    _library.library().cachalot_maintain(_handle.require(), device_index(device), max_us, ctypes.byref(more))
    return bool(more.value)


def maintain_every(seconds: float, max_us: int = 2000) -> None:
    """Lets a thread of the library call :func:`maintain` for every device, with a pause of
    ``seconds`` between two rounds. Another call changes the pace; 0 ends the thread."""
    _library.library().cachalot_maintain_every(_handle.require(), round(seconds * 1e6), max_us)


def reclaim_stats(device: Device = None) -> dict[str, int]:
    """Returns what :func:`maintain` has given back under ``reclaim:auto``, and what it has kept and
    why. A unit is a segment without a block in use, or a page of an expandable segment.

    Sums: ``looks`` (calls that looked at the memory), ``given_back`` and ``obtained_again`` in bytes, with
    ``given_back_units`` and ``obtained_again_units``, ``too_early_units`` (of these, the ones that had
    better been kept), ``driver_us`` (the driver's time of giving back), and ``observed_units`` (what
    predictions are made from). Of the latest call, in bytes: ``idle``, ``needed_soon``, ``busy`` (the device
    works) and ``unpaid``; ``budget_us`` (driver time that is left), and ``caution`` (a power of two)."""
    return _of_group("reclaim.", device)


def page_stats(device: Device = None) -> dict[str, int]:
    """Returns what the pages of virtual memory are used for, in bytes: ``mapped`` where blocks can
    use them, ``spare`` (mapped nowhere), ``stale`` (addresses that pages have left, still mapped),
    ``pinned``, ``parked`` (addresses without memory), and so far ``moved`` and ``consolidated`` (pages
    that have replaced shorter ones).

    Returns also what they have cost so far: the number and the microseconds of the driver's calls of
    each kind, such as ``map.calls`` and ``map.us`` (``reserve``, ``unreserve``, ``create``,
    ``destroy``, ``map``, ``set_access``, ``unmap``, ``export_fd``), the number of requests that mapped
    for longer than ``max_stall_us`` (``stalls``), and the longest time that one request mapped
    (``longest_stall_us``)."""
    return _of_group("pages.", device)


def _of_group(group: str, device: Device) -> dict[str, int]:
    """Returns the statistics whose names start with ``group``, without the group and without the unit ``bytes``."""
    _handle.require()
    figures = _statistics.statistics(device).items()
    return {key.removeprefix(group).removesuffix("_bytes"): value for key, value in figures if key.startswith(group)}
