"""``torch._C``: what PyTorch has in C++. With a plug-in most of it raises, as here."""

from __future__ import annotations

import ctypes
from typing import Any, Callable

_GLIBCXX_USE_CXX11_ABI = True

Alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
Free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


class Pair(ctypes.Structure):
    """``std::pair<uint64_t, uint64_t>``."""

    _fields_ = [("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]


class _CUDAPluggableAllocator:
    """A plug-in: two functions, and hooks that are called if they were set."""

    SIGNATURES = {
        "set_init_fn": ctypes.CFUNCTYPE(None, ctypes.c_int),
        "set_reset_fn": ctypes.CFUNCTYPE(None),
        "set_memory_fraction_fn": ctypes.CFUNCTYPE(None, ctypes.c_double, ctypes.c_int),
        "set_base_alloc_fn": ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)),
        "set_record_stream_fn": ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p),
        # What it takes are C++ objects; here it is only known to be set.
        "set_begin_allocate_to_pool": ctypes.c_void_p,
        "set_end_allocate_to_pool_fn": ctypes.CFUNCTYPE(None, ctypes.c_int, Pair),
        "set_release_pool": ctypes.CFUNCTYPE(None, ctypes.c_int, Pair),
    }

    def __init__(self, alloc: int, free: int) -> None:
        self.alloc, self.free = Alloc(alloc), Free(free)
        self.hooks: dict[str, Any] = {}

    def set_begin_allocate_to_pool(self, address: int) -> None:
        self._set("set_begin_allocate_to_pool", address)

    def __getattr__(self, name: str) -> Callable[[int], None]:
        if name not in self.SIGNATURES:
            raise AttributeError(name)
        return lambda address: self._set(name, address)

    def _set(self, name: str, address: int) -> None:
        assert address, name
        self.hooks[name] = self.SIGNATURES[name](address)


class State:
    """What the process has done."""

    initialized = False
    devices = 2
    plugin: _CUDAPluggableAllocator | None = None


def _unsupported(*_: object) -> None:
    raise RuntimeError("CUDAPluggableAllocator does not yet support it")


_cuda_memoryStats = _cuda_resetPeakMemoryStats = _cuda_resetAccumulatedMemoryStats = _unsupported
_cuda_memorySnapshot = _cuda_record_memory_history = _cuda_getMemoryFraction = _unsupported
_cuda_isHistoryEnabled = _unsupported


def _cuda_setMemoryFraction(fraction: float, device: int) -> None:
    assert State.plugin
    State.plugin.hooks["set_memory_fraction_fn"](fraction, device)
