"""The allocator of the process, whose statistics this package returns: of PyTorch and of the other
libraries."""

from __future__ import annotations

import ctypes

from . import _library


def peek() -> ctypes.c_void_p | None:
    """Returns the allocator's handle, or ``None`` before the first allocation of the plug-in or of
    a pool."""
    handle = ctypes.c_void_p()
    _library.library().cachalot_torch_peek(ctypes.byref(handle))
    return handle if handle.value else None


def require() -> ctypes.c_void_p:
    """Returns the allocator's handle, and makes the allocator if there is none. Loads the driver,
    and opens no device."""
    handle = ctypes.c_void_p()
    _library.library().cachalot_torch_allocator(ctypes.byref(handle))
    return handle


def device_count(handle: ctypes.c_void_p) -> int:
    """Returns how many devices the allocator has."""
    count = ctypes.c_int()
    _library.library().cachalot_get_device_count(handle, ctypes.byref(count))
    return count.value


def device_info(handle: ctypes.c_void_p, device: int) -> _library.Device:
    """Returns the state of one device, whose context is made if there is none."""
    info = _library.Device(struct_size=ctypes.sizeof(_library.Device))
    _library.library().cachalot_get_device_info(handle, device, ctypes.byref(info))
    return info
