"""Memory of the host in place of the GPU's, for tensors that are rarely used."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import TYPE_CHECKING, Literal

import torch

from .. import _handle, _library
from . import _tags
from ._installed import device_index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from ._installed import Device

_ADVICE = {"cold": 1, "hot": 2}
"""``cachalot_advice``."""

_lock = threading.Lock()
_pools: dict[int, torch.cuda.MemPool] = {}
"""The pool of every device whose memory lies on the host. It lives as long as the process: its
tensors may."""


def _pool(index: int) -> torch.cuda.MemPool:
    """Returns the pool of a device whose memory lies on the host."""
    _tags.require()
    with _lock:
        if index not in _pools:
            with torch.cuda.device(index):
                pool = torch.cuda.MemPool()
            _library.library().cachalot_pool_spill(_handle.require(), index, _library.Pool(*pool.id), 1)
            _pools[index] = pool
        return _pools[index]


@contextlib.contextmanager
def spilled(device: Device = None) -> Iterator[None]:
    """Gives the requests of this thread memory of the host, which kernels use at the rate of the
    link. For what is large and rarely used: the state of an optimizer, embeddings, old caches.

        with spilled():
            optimizer.step()    # the first step makes the state

    Needs ``spill`` in the settings, and :func:`enable` as PyTorch's whole allocator. Beyond the
    bytes that ``spill`` and the host allow, the memory is the GPU's. What is freed serves the next
    request inside ``spilled``. Inside ``with`` of a :class:`Tag`, the inner of both counts.

    Args:
        device: the device. ``None`` is the current one.

    Raises:
        UnavailableError: cachalot is not PyTorch's whole allocator.
        CachalotError: ``spill`` is not set, or the policy does not spill.
    """
    index = device_index(device)
    with torch.cuda.use_mem_pool(_pool(index), device=index):
        yield


def advise(tensor: Tensor, advice: Literal["cold", "hot"]) -> int:
    """Moves the memory of a tensor to the host (``"cold"``), within the bytes that ``spill`` allows,
    or back to the GPU (``"hot"``). Address, contents and captured graphs stay. Needs
    :func:`enable`, and a tensor with memory of cachalot.

    Only whole pages under the tensor's memory move, of 20 MiB in large segments, because other
    tensors have the rest. If the memory of the other kind ends, the rest stays. Waits for the work
    queued before on the streams on which the tensor was made and recorded; no other thread may use
    the tensor meanwhile.

    Returns the bytes that have moved.

    Raises:
        CachalotError: ``spill`` is not set, or the policy does not spill; a graph is being captured.
    """
    if advice not in _ADVICE:
        raise ValueError(f"advice is one of {tuple(_ADVICE)}, not {advice!r}")
    moved = ctypes.c_uint64()
    block = ctypes.c_void_p(tensor.untyped_storage().data_ptr())
    _library.library().cachalot_advise(_handle.require(), block, _ADVICE[advice], ctypes.byref(moved))
    return moved.value
