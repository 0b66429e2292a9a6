"""What the device has, what this process may take of it, and giving back what is cached."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .. import _library
from . import _handle
from ._installed import device_index

if TYPE_CHECKING:
    from ._installed import Device

_fractions: dict[tuple[int, int], float] = {}
"""Which fraction led to this limit of this device: it cannot be had back to the last digit from a number of bytes."""


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Sets the most that may be held of a device to a part of its memory, 0.0 to 1.0. Requests beyond it run out of
    memory; what is held already stays. 1.0 is no limit.

    Raises:
        TypeError: the fraction is no ``float``.
        ValueError: it is outside of 0 to 1.
    """
    if not isinstance(fraction, float):
        raise TypeError("the fraction must be a float")
    if not 0 <= fraction <= 1:
        raise ValueError(f"the fraction must be from 0 to 1, not {fraction}")
    handle, index = _handle.require(), device_index(device)
    _library.library().cachalot_set_memory_fraction(handle, index, fraction)
    _fractions[index, _handle.device_info(handle, index).limit_bytes] = fraction


def get_per_process_memory_fraction(device: Device = None) -> float:
    """The part of the device's memory that may be held: as it was set here, else what the limit in force comes to."""
    index = device_index(device)
    info = _handle.device_info(_handle.require(), index)
    fraction: float = _fractions.get((index, info.limit_bytes), min(1.0, info.limit_bytes / info.total_bytes))
    return fraction


def empty_cache() -> None:
    """Gives every segment that has no block in use back to the driver, on every device. Waits for frees that are
    pending."""
    if handle := _handle.peek():
        for device in range(_handle.device_count(handle)):
            _library.library().cachalot_empty_cache(handle, device)


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """How many bytes of the device no process uses, and how many it has, as the driver says:
    ``torch.cuda.mem_get_info``, which works under every allocator."""
    free, total = torch.cuda.mem_get_info(device_index(device))
    return free, total


def list_gpu_processes(device: Device = None) -> str:
    """Which processes use the device and how much of it: ``torch.cuda.list_gpu_processes``, which works under every
    allocator."""
    text: str = torch.cuda.list_gpu_processes(device_index(device))
    return text
