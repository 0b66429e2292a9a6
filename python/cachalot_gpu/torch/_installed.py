"""The PyTorch that is installed: whether it can take a plug-in, and how it names devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Union

import torch

from .. import errors

if TYPE_CHECKING:
    Device = Optional[Union[int, str, torch.device]]

_HOOKS_SINCE = "2.2"
"""The first version of PyTorch whose plug-ins have all the hooks that are set here."""


def check() -> None:
    """Raises unless the installed PyTorch can take a plug-in, and there is a GPU for it. Does not initialise CUDA."""
    if torch.version.cuda is None:
        raise errors.NoGpuError(f"PyTorch {torch.__version__} was built without CUDA")
    plugin = getattr(torch._C, "_CUDAPluggableAllocator", None)
    if not hasattr(plugin, "set_begin_allocate_to_pool"):
        raise errors.TorchTooOldError(
            f"PyTorch {torch.__version__} has no allocator plug-ins with pools: {_HOOKS_SINCE} or later is needed"
        )
    if torch.cuda.device_count() == 0:
        raise errors.NoGpuError("PyTorch finds no GPU: torch.cuda.device_count() is 0")


def device_index(device: Device) -> int:
    """The number of a device that is named as PyTorch allows: a number, ``"cuda:1"``, a ``torch.device``, or
    ``None``, the current one."""
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "cuda":
            raise ValueError(f"expected a CUDA device, but got {device}")
        device = device.index
    return torch.cuda.current_device() if device is None else int(device)
