"""The memory of a device, the limit of this process, and the release of cached memory."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

from .. import _handle, _library
from ._installed import device_index

if TYPE_CHECKING:
    from ._installed import Device

_fractions: dict[tuple[int, int], float] = {}
"""The fraction that was set, by the device and its limit in bytes, from which the last digits
cannot be computed."""


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limits this process to a fraction of the memory of a device. Requests beyond the limit run
    out of memory. Memory that is already held stays. 1.0 is no limit.

    Raises:
        TypeError: the fraction is not a ``float``.
        ValueError: the fraction is not from 0 to 1.
    """
    if not isinstance(fraction, float):
        raise TypeError("the fraction must be a float")
    if not 0 <= fraction <= 1:
        raise ValueError(f"the fraction must be from 0 to 1, not {fraction}")
    handle, index = _handle.require(), device_index(device)
    _library.library().cachalot_set_memory_fraction(handle, index, fraction)
    _fractions[index, _handle.device_info(handle, index).limit_bytes] = fraction


def get_per_process_memory_fraction(device: Device = None) -> float:
    """Returns the limit of this process as a fraction of the memory of a device."""
    index = device_index(device)
    info = _handle.device_info(_handle.require(), index)
    fraction: float = _fractions.get((index, info.limit_bytes), min(1.0, info.limit_bytes / info.total_bytes))
    return fraction


def empty_cache() -> None:
    """Releases every segment without a block in use to the driver, on every device. Waits for
    pending frees."""
    if handle := _handle.peek():
        for device in range(_handle.device_count(handle)):
            _library.library().cachalot_empty_cache(handle, device)


class RemainingMemory(NamedTuple):
    """What is on a GPU, in bytes. The next six are together ``used_bytes``, and ``spilled_bytes``
    in addition."""

    used_bytes: int
    """In use by all processes."""
    block_bytes: int
    """Live blocks and committed ranges."""
    pending_bytes: int
    """Freed blocks that other streams still use."""
    cached_bytes: int
    """Free memory of segments and mapped ranges."""
    spare_bytes: int
    """Pages in use by no block and not yet given back."""
    leaked_bytes: int
    """Memory in doubt after a failure of the driver."""
    other_bytes: int
    """What cachalot does not hold: the context, modules, graphs, other processes."""
    pinned_bytes: int
    """Pinned pages, which are never parked: part of the fields above."""
    parked_bytes: int
    """Parked memory: addresses without memory of the GPU."""
    spilled_bytes: int
    """Memory of the host (``spill``): part of blocks, pending and cached memory."""


def remaining_memory(device: Device = None) -> RemainingMemory:
    """Returns what is on a GPU, by name. After everything was parked, this is what remains. Asks
    the driver."""
    memory = _library.Remaining(struct_size=ctypes.sizeof(_library.Remaining))
    _library.library().cachalot_get_remaining_memory(_handle.require(), device_index(device), ctypes.byref(memory))
    return RemainingMemory(**_library.fields(memory))
