"""Predictions of memory, as a function of ``cachalot_gpu.torch``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._predict import Prediction


def predict(step: Callable[[], Any], **options: Any) -> list[Prediction]:
    """Predicts the memory of a training step under every policy, without a GPU.

    ``step`` makes the model, the optimizer and the data on the device ``"cuda"``, and trains one
    step or more. PyTorch's FakeTensorMode runs it: tensors have shapes and no values.

    On a machine without a GPU, ``import cachalot_gpu.predict`` must come before ``import torch`` if
    PyTorch's build has CUDA.

    Args:
        step: the training step.
        options: the options of :func:`cachalot_gpu.predict.predict`: ``limit_bytes``, ``policies``,
            ``configs`` and ``workspace_bytes``.
    """
    from ._predict import predict as run

    return run(step, **options)
