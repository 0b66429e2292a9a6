"""``torch.cuda``."""

from __future__ import annotations

import types
from typing import Any

from .. import _C
from . import memory
from .memory import memory_stats, memory_summary

__all__ = ["MemPool", "memory", "memory_stats", "memory_summary"]


def is_initialized() -> bool:
    return _C.State.initialized


def device_count() -> int:
    return _C.State.devices


def init() -> None:
    if not _C.State.initialized:
        _C.State.initialized = True
        if _C.State.plugin:
            _C.State.plugin.hooks["set_init_fn"](_C.State.devices)


def current_device() -> int:
    init()
    return 0


def current_stream(device: Any = None) -> Any:
    return types.SimpleNamespace(cuda_stream=0)


class MemPool:
    """A pool with the plug-in that it was made with."""

    def __init__(self, allocator: _C._CUDAPluggableAllocator | None = None, **options: Any) -> None:
        if _C.State.plugin:
            _C._unsupported()
        self.allocator, self.options = allocator, options
