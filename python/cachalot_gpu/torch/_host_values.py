"""Tensors of the host during a prediction. Small ones keep their values, because scripts decide by
them: labels, indices, lengths, counters of optimizers. Large ones have shapes alone, like those of
the device, so that a model of any size takes no memory here."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_iter

MOST_BYTES = 1 << 20
"""Largest tensor with values, in bytes."""

MOST_BYTES_OF_INTEGERS = 64 << 20
"""Largest tensor of integers or booleans with values, in bytes: a data set of tokens."""


def _is_small(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is small enough to have values."""
    exact = not tensor.dtype.is_floating_point and not tensor.dtype.is_complex
    return tensor.numel() * tensor.element_size() <= (MOST_BYTES_OF_INTEGERS if exact else MOST_BYTES)


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Runs an operation with values if it concerns small tensors of the host alone.

    Returns:
        its outcome, or None if the operation has to run without values.
    """
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != "cpu":
        return None
    inputs = [value for value in tree_iter((args, kwargs)) if isinstance(value, torch.Tensor)]
    if any(isinstance(value, FakeTensor) or value.device.type != "cpu" for value in inputs):
        return None
    if inputs:
        # A view makes no memory, and a large tensor with values came from a file or from NumPy.
        if not func.is_view and not all(_is_small(value) for value in inputs):
            return None
    else:
        shapes = func(*args, **kwargs)
        if not all(_is_small(value) for value in tree_iter(shapes) if isinstance(value, torch.Tensor)):
            return shapes
    with unset_fake_temporarily():
        return func(*args, **kwargs)
