"""Uses of memory by other streams."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from .. import _handle, _library

if TYPE_CHECKING:
    from torch import Tensor


def record_use(tensor: Tensor, stream: torch.cuda.Stream | None = None) -> None:
    """Records that the work submitted to ``stream`` so far, by default to the current stream, uses
    the memory of ``tensor``. Needs :func:`enable`, and a tensor whose memory cachalot has
    allocated.

    ``Tensor.record_stream`` keeps freed memory until the stream has done all that was submitted up
    to the free. Here work that is submitted after this call delays no reuse. If a request would use
    the memory before the work is done, the stream of the tensor waits for it on the GPU, and the
    program does not wait."""
    if stream is None:
        stream = torch.cuda.current_stream(tensor.device)
    block = tensor.untyped_storage().data_ptr()
    _library.library().cachalot_record_use(_handle.require(), ctypes.c_void_p(block), stream.cuda_stream)
