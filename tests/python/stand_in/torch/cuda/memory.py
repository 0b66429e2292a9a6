"""``torch.cuda.memory``: its figures are made of what ``torch._C`` says."""

from __future__ import annotations

import ctypes
from typing import Any

from .. import _C


def memory_stats(device: int = 0) -> dict[str, int]:
    flat: dict[str, int] = {}

    def add(prefix: str, part: Any) -> None:
        if isinstance(part, dict):
            for key, value in part.items():
                add(f"{prefix}.{key}" if prefix else key, value)
        else:
            flat[prefix] = part

    add("", _C._cuda_memoryStats(device))
    return dict(sorted(flat.items()))


def memory_summary(device: int = 0, abbreviated: bool = False) -> str:
    return f"{memory_stats(device)['allocated_bytes.all.current']} B on {device}, {abbreviated}"


class CUDAPluggableAllocator:
    """Loads a library and takes two functions of it, as PyTorch does."""

    def __init__(self, path: str, alloc: str, free: str) -> None:
        library = ctypes.CDLL(path)
        addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in (alloc, free)]
        self._allocator = _C._CUDAPluggableAllocator(*addresses)

    def allocator(self) -> _C._CUDAPluggableAllocator:
        return self._allocator


def change_current_allocator(allocator: CUDAPluggableAllocator) -> None:
    if _C.State.initialized or _C.State.plugin:
        raise RuntimeError("Can't swap an already initialized allocator")
    _C.State.plugin = allocator.allocator()
    # PyTorch's first use of CUDA follows.
    _C.State.plugin.hooks["set_init_fn"](0)
