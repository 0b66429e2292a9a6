"""cachalot in the place of PyTorch's allocator."""

from __future__ import annotations

import ctypes
import threading

import torch

from .. import _library, errors
from . import _handle, _installed, _patch, _shim

_HOOKS = {
    # PyTorch's setter: the function of the library
    "set_init_fn": "cachalot_torch_init",
    "set_reset_fn": "cachalot_torch_reset",
    "set_memory_fraction_fn": "cachalot_torch_memory_fraction",
    "set_base_alloc_fn": "cachalot_torch_base_alloc",
    "set_record_stream_fn": "cachalot_torch_record_stream",
    "set_end_allocate_to_pool_fn": "cachalot_torch_end_allocate_to_pool",
    "set_release_pool": "cachalot_torch_release_pool",
}

_lock = threading.Lock()
_in_place: list[torch.cuda.memory.CUDAPluggableAllocator] = []
"""The plug-in, once it is in place: PyTorch calls it as long as the process lives."""


def configure(config: str) -> None:
    """Puts settings in force, as :func:`enable` does at first. Afterwards ``max_split_size_mb``,
    ``max_non_split_rounding_mb``, ``garbage_collection_threshold`` and ``roundup_power2_divisions`` fall back to
    their defaults unless they are named, and all others stay as they are, as with PyTorch's own; blocks and
    segments stay as they are, too.

    Raises:
        ConfigurationError: the settings cannot be understood; the text lists what is accepted.
    """
    _library.library().cachalot_torch_configure(config.encode())


def start(config: str | None) -> None:
    """Puts the settings in force, if there are any, and has the library find the driver."""
    if config is not None:
        configure(config)
    _handle.require()


def enabled() -> bool:
    """Whether PyTorch allocates through cachalot: :func:`enable` was called and did not raise."""
    return bool(_in_place)


def _plugin() -> torch.cuda.memory.CUDAPluggableAllocator:
    """The plug-in with every hook set."""
    shim = str(_shim.path())
    plugin = torch.cuda.memory.CUDAPluggableAllocator(shim, "cachalot_torch_alloc", "cachalot_torch_free")
    for setter, function in _HOOKS.items():
        getattr(plugin.allocator(), setter)(_library.address(function))
    begin = ctypes.cast(ctypes.CDLL(shim).cachalot_torch_begin_pool, ctypes.c_void_p).value
    plugin.allocator().set_begin_allocate_to_pool(begin)
    return plugin


def enable(config: str | None = None, patch: bool = False) -> None:
    """Puts cachalot in the place of PyTorch's CUDA allocator, in this process and for every device. To be called
    once, before anything uses CUDA.

    Args:
        config: settings such as ``"policy:caching,expandable_segments:True"``, in the syntax of
            ``PYTORCH_CUDA_ALLOC_CONF``, sizes as their names say (``_mb`` is MiB). ``None``: what ``CACHALOT_CONF``
            says, else PyTorch's own variables.
        patch: whether PyTorch's own figures (``torch.cuda.memory_stats()`` and all that is made of it, snapshots,
            the history of allocations, the memory fraction) are to be cachalot's from here on. Without, they raise,
            as with any plug-in; those of ``cachalot_gpu.torch`` work in either case.

    Raises:
        AlreadyEnabledError: it is in place already.
        EnabledTooLateError: PyTorch's own allocator is in use already.
        ConfigurationError: the settings cannot be understood; the text lists what is accepted.
        NoGpuError, DriverTooOldError: there is no GPU, no driver, or one older than CUDA 11.4.
        TorchTooOldError: this PyTorch has no plug-ins with pools.
    """
    with _lock:
        if _in_place:
            raise errors.AlreadyEnabledError(
                "cachalot is PyTorch's allocator already; it can be enabled once in a process"
            )
        _installed.check()
        too_late = (
            "cachalot_gpu.torch.enable() must come before the first use of CUDA: PyTorch's own allocator is in use already"
        )
        if torch.cuda.is_initialized():
            raise errors.EnabledTooLateError(too_late)
        start(config)
        plugin = _plugin()
        try:
            torch.cuda.memory.change_current_allocator(plugin)
        except RuntimeError as error:
            raise errors.EnabledTooLateError(f"{too_late} ({error})") from error
        _in_place.append(plugin)
        if patch:
            _patch.put_in_place()
