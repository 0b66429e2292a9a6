"""Uses of memory by other streams."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from .. import _handle, _library

if TYPE_CHECKING:
    from torch import Tensor


def record_use(tensor: Tensor, stream: torch.cuda.Stream | None = None) -> None:
    """Announces that the work submitted to ``stream`` so far, by default to the current stream,
    uses the memory of ``tensor``. Needs :func:`enable`, and a tensor with memory of cachalot.

    ``Tensor.record_stream`` keeps freed memory until the stream has done everything that was
    submitted before the free. Here, work that is submitted after this call does not delay the
    reuse. If a request takes the memory before the work is done, the stream of the tensor waits for
    the work on the GPU, and the program does not wait."""
    if stream is None:
        stream = torch.cuda.current_stream(tensor.device)
    block = tensor.untyped_storage().data_ptr()
    _library.library().cachalot_record_use(_handle.require(), ctypes.c_void_p(block), stream.cuda_stream)
