"""A pool of PyTorch's on cachalot: PyTorch's allocator stays in place, and takes the segments of this pool from
cachalot."""

from __future__ import annotations

from typing import Any

import torch

from .. import _files, errors
from . import _installed, _plugin

_kept: list[torch.cuda.memory.CUDAPluggableAllocator] = []
"""The plug-in of every pool, which must live as long as any of their memory: as long as the process."""


def _allocator() -> torch.cuda.memory.CUDAPluggableAllocator:
    """What hands out segments. It answers NULL where there is none, whereupon PyTorch gives back what it can, asks
    again, and raises
    an error of its own: so this needs no shim."""
    if not _kept:
        _kept.append(
            torch.cuda.memory.CUDAPluggableAllocator(
                str(_files.LIBRARY), "cachalot_torch_malloc", "cachalot_torch_free"
            )
        )
    return _kept[0]


def pool(config: str | None = None, *, use_on_oom: bool = False, no_split: bool = False) -> torch.cuda.MemPool:
    """A ``torch.cuda.MemPool`` whose segments come from cachalot. Use it with ``torch.cuda.use_mem_pool``.

    PyTorch's own allocator goes on deciding about blocks, and all of ``torch.cuda.memory_…`` works; cachalot
    decides about segments (2 MiB, 20 MiB, multiples of 2 MiB) and sees nothing else. CUDA is initialised.

    Args:
        config: settings for all such pools, as of :func:`enable`. ``None``: those in force.
        use_on_oom, no_split: as of ``torch.cuda.MemPool``.

    Raises:
        CachalotError: cachalot is enabled as PyTorch's allocator, under which PyTorch has no such pools.
        ConfigurationError, NoGpuError, DriverTooOldError, TorchTooOldError: as :func:`enable`.
    """
    if _plugin.enabled():
        raise errors.CachalotError("PyTorch has no MemPool under a plug-in, and cachalot_gpu.torch.enable() made it one")
    _installed.check()
    if not hasattr(torch.cuda, "MemPool"):
        raise errors.TorchTooOldError(f"PyTorch {torch.__version__} has no torch.cuda.MemPool: 2.5 or later is needed")
    _plugin.start(config)
    torch.cuda.init()
    # Older versions do not have both: what is not asked for is not named.
    wanted: dict[str, Any] = {name: True for name, on in [("use_on_oom", use_on_oom), ("no_split", no_split)] if on}
    return torch.cuda.MemPool(_allocator().allocator(), **wanted)
