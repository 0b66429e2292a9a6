"""The allocator behind the plug-in, which every figure comes from."""

from __future__ import annotations

import ctypes

from .. import _library


def peek() -> ctypes.c_void_p | None:
    """The allocator's handle, or ``None`` before the first allocation of the plug-in or of a pool. Opens no device."""
    handle = ctypes.c_void_p()
    _library.library().cachalot_torch_peek(ctypes.byref(handle))
    return handle if handle.value else None


def require() -> ctypes.c_void_p:
    """The allocator's handle; it is made if there is none. Loads the driver and opens no device."""
    handle = ctypes.c_void_p()
    _library.library().cachalot_torch_allocator(ctypes.byref(handle))
    return handle


def device_count(handle: ctypes.c_void_p) -> int:
    """How many devices the allocator has."""
    count = ctypes.c_int()
    _library.library().cachalot_device_count(handle, ctypes.byref(count))
    return count.value


def device_info(handle: ctypes.c_void_p, device: int) -> _library.Device:
    """One device as it stands; its context is made if there is none."""
    info = _library.Device(struct_size=ctypes.sizeof(_library.Device))
    _library.library().cachalot_device_info(handle, device, ctypes.byref(info))
    return info
