"""The installed PyTorch: whether it has plug-ins, whether it finds a GPU, and how it names
devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Union

import torch

from .. import errors

if TYPE_CHECKING:
    Device = Optional[Union[int, str, torch.device]]

_HOOKS_SINCE = "2.2"
"""The first version of PyTorch whose plug-ins have all hooks of this package."""


def require_plugins() -> None:
    """Raises an error if the installed PyTorch has no CUDA, or no plug-ins with pools."""
    if torch.version.cuda is None:
        raise errors.UnavailableError(f"PyTorch {torch.__version__} was built without CUDA")
    plugin = getattr(torch._C, "_CUDAPluggableAllocator", None)
    if not hasattr(plugin, "set_begin_allocate_to_pool"):
        raise errors.UnavailableError(
            f"PyTorch {torch.__version__} has no allocator plug-ins with pools: {_HOOKS_SINCE} or later is needed"
        )


def require_gpu() -> None:
    """Raises an error if PyTorch finds no GPU. Does not initialise CUDA."""
    if torch.cuda.device_count() == 0:
        raise errors.UnavailableError("PyTorch finds no GPU: torch.cuda.device_count() is 0")


def named_index(device: Device) -> int | None:
    """Returns the number of a device, which PyTorch names by a number, ``"cuda:1"`` or a
    ``torch.device``. ``None`` and ``"cuda"`` are the current device, and give ``None``. Does not
    initialise CUDA."""
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "cuda":
            raise ValueError(f"expected a CUDA device, but got {device}")
        device = device.index
    return None if device is None else int(device)


def device_index(device: Device) -> int:
    """Returns the number of a device, as :func:`named_index`, and that of the current device for
    ``None``."""
    index = named_index(device)
    return torch.cuda.current_device() if index is None else index
