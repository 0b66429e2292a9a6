"""Pools of PyTorch's own allocator whose segments come from cachalot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .. import _files, errors
from . import _installed, _loans, _plugin, _switch, _whole

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_kept: list[torch.cuda.memory.CUDAPluggableAllocator] = []
"""The plug-in of every pool. Tensors may live as long as the process, and so must the plug-in."""


def _allocator() -> torch.cuda.memory.CUDAPluggableAllocator:
    """Returns the plug-in that allocates segments.

    It needs no shim: if an allocation of a segment fails, then PyTorch releases cached memory,
    tries again, and raises its own error.
    """
    if not _kept:
        _kept.append(
            torch.cuda.memory.CUDAPluggableAllocator(
                str(_files.LIBRARY), "cachalot_torch_malloc", "cachalot_torch_free"
            )
        )
    return _kept[0]


if TYPE_CHECKING:
    from torch.cuda import MemPool as _Base
else:
    # PyTorch before 2.5 has none.
    _Base = getattr(torch.cuda, "MemPool", object)


class MemPool(_Base):
    """A ``torch.cuda.MemPool`` that takes its segments from cachalot, for
    ``torch.cuda.use_mem_pool``.

    PyTorch's own allocator still decides about blocks, and all functions of ``torch.cuda.memory``
    work. cachalot decides about segments only (2 MiB, 20 MiB, multiples of 2 MiB). Initialises
    CUDA. After :func:`enable` as a whole allocator, cachalot decides about blocks, too. With
    ``CACHALOT_DISABLE``, the segments come from PyTorch.

    Args:
        config: settings for all pools, as for :func:`enable`. ``None`` changes no setting.
        use_on_oom, no_split: the arguments of ``torch.cuda.MemPool``.

    Raises:
        ConfigurationError: the settings have a mistake.
        UnavailableError: cachalot is a plug-in, under which PyTorch has no pools; PyTorch is older
            than 2.5; or as for :func:`enable`.
    """

    def __init__(self, *, config: str | None = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        if _plugin.enabled() and not _whole.in_place():
            raise errors.UnavailableError("MemPool excludes enable(): PyTorch has no MemPool under a plug-in")
        _installed.require_plugins()
        if _Base is object:
            raise errors.UnavailableError(
                f"PyTorch {torch.__version__} has no torch.cuda.MemPool: 2.5 or later is needed"
            )
        # Older versions of PyTorch do not have one argument or both, so only those that the caller
        # wants are passed.
        wanted: dict[str, Any] = {name: True for name, on in [("use_on_oom", use_on_oom), ("no_split", no_split)] if on}
        if not (is_off := _switch.leave_out_if_disabled()):
            _plugin.start(config)
        torch.cuda.init()
        if not is_off and not _whole.in_place():
            wanted["allocator"] = _allocator().allocator()
        super().__init__(**wanted)

    def lent(self) -> AbstractContextManager[None]:
        """Lends the memory of the pool's free blocks inside of ``with``, as
        :func:`cachalot_gpu.torch.lent` does. Needs :func:`enable` as PyTorch's whole allocator."""
        return _loans.lent(self)
