"""Elastic ranges: tensors that grow and shrink in place."""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from .. import _handle, _library
from ._installed import device_index

if TYPE_CHECKING:
    from torch import Tensor

    from ._installed import Device


class _Bytes:
    """Committed bytes of a range, for ``torch.as_tensor``. Keeps the range as long as a tensor uses
    the bytes."""

    def __init__(self, owner: ElasticTensor, address: int, length: int) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (length,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class ElasticTensor:
    """Rows that grow and shrink in place, such as a table or a KV cache: only the first ones have
    memory.

        cache = ElasticTensor((1_000_000, heads, size), torch.float16)
        keys = cache.resize(4096)   # 4096 rows
        keys = cache.resize(8192)   # the first 4096 rows keep their addresses and contents

    The constructor reserves addresses, and no row has memory yet. :meth:`resize` adds and removes
    memory at the end: the addresses of the rows never change, and neither do the contents of the
    rows that stay. Captured graphs may use the rows.

    The memory comes from cachalot's pages, under every policy, and counts against cachalot's limit.
    Works with and without :func:`enable`: without it, the memory is outside PyTorch's own. All
    methods may be called by any thread.

    Args:
        shape: the number of rows at most, and the lengths of a row.
        dtype: the type, by default PyTorch's default type.
        device: the device, by default the current one.

    Raises:
        ValueError: a length of ``shape`` is below 1.
        CachalotError: the device has no virtual memory, or the addresses cannot be had.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype | None = None, device: Device = None) -> None:
        dtype = torch.get_default_dtype() if dtype is None else dtype
        self.capacity, *rest = (int(length) for length in shape)
        if self.capacity < 1 or min(rest, default=1) < 1:
            raise ValueError(f"an elastic tensor needs at least one row, and no length of 0: {tuple(shape)}")
        self.dtype = dtype
        self.device = device_index(device)
        self._rest = tuple(rest)
        self._row_bytes = math.prod(rest) * dtype.itemsize
        self._lock = threading.Lock()
        self._rows = 0
        self._committed = 0
        self._range = _library.Range()
        library = _library.library()
        library.cachalot_range_reserve(
            _handle.require(), self.device, self.capacity * self._row_bytes, ctypes.byref(self._range)
        )
        self._release = weakref.finalize(self, library.cachalot_range_release, self._range)
        # At the end of the process, the driver takes everything back.
        self._release.atexit = False

    @property
    def rows(self) -> int:
        """The number of rows of the latest :meth:`resize`."""
        return self._rows

    @property
    def committed_bytes(self) -> int:
        """The bytes that have memory: whole pages."""
        return self._committed

    @property
    def page_bytes(self) -> int:
        """The bytes of a page, 2 MiB on present GPUs."""
        return int(self._range.page_bytes)

    def resize(self, rows: int, stream: torch.cuda.Stream | None = None) -> Tensor:
        """Gives the first ``rows`` rows memory, and takes the memory of the rest back. Returns the
        rows as a tensor. New rows have any contents. The host does not wait.

        Tensors of earlier calls stay valid for the rows that stay. A kernel that uses a removed row
        faults, or changes memory of others.

        Args:
            rows: the number of rows, at most ``capacity``.
            stream: work submitted to the stream after the call may use new rows, and work submitted
                before the call may have used removed rows. ``None`` is the current stream. Work of
                other streams on removed rows must precede the work on this stream.

        Raises:
            ValueError: ``rows`` is negative, or above the capacity.
            OutOfMemoryError: the device or the limit does not have the memory. All rows are as
                before.
            CachalotError: rows are removed while a graph is captured.
        """
        if not 0 <= rows <= self.capacity:
            raise ValueError(f"{rows} rows: an elastic tensor of {self.capacity} has 0 to {self.capacity}")
        if stream is None:
            stream = torch.cuda.current_stream(self.device)
        library = _library.library()
        with self._lock:
            if not self._release.alive:
                raise ValueError("the elastic tensor is released")
            wanted = -(-rows * self._row_bytes // self.page_bytes) * self.page_bytes
            if wanted > self._committed:
                part = (self._committed, wanted - self._committed)
                library.cachalot_range_commit(self._range, *part, stream.cuda_stream)
            elif wanted < self._committed:
                part = (wanted, self._committed - wanted)
                library.cachalot_range_decommit(self._range, *part, stream.cuda_stream)
            self._committed, self._rows = wanted, rows
        return self.tensor(rows)

    def tensor(self, rows: int | None = None) -> Tensor:
        """Returns the first rows as a tensor, all that have memory by default. The tensor keeps the
        addresses until it is gone, also after the last reference to this object.

        Raises:
            ValueError: there are fewer rows.
        """
        rows = self._rows if rows is None else rows
        if not 0 <= rows <= self._rows:
            raise ValueError(f"{rows} rows: the elastic tensor has {self._rows} now")
        if rows == 0:
            return torch.empty((0, *self._rest), dtype=self.dtype, device=f"cuda:{self.device}")
        whole: Any = _Bytes(self, int(self._range.base), rows * self._row_bytes)
        return torch.as_tensor(whole, device=f"cuda:{self.device}").view(self.dtype).view(rows, *self._rest)

    def release(self) -> None:
        """Gives all memory and the addresses back, after the work submitted so far to every stream
        that a call of :meth:`resize` has named. No tensor of the rows may be used afterwards. A
        second call does nothing. The last reference to the object and its tensors does the same.

        Raises:
            CachalotError: a graph is being captured. The rows are as before then.
        """
        with self._lock:
            if self._release.alive:
                _library.library().cachalot_range_release(self._range)
                self._release.detach()
                self._rows = self._committed = 0
