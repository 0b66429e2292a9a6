"""cachalot in the place of PyTorch's CUDA allocator: as a whole allocator, else as a plug-in."""

from __future__ import annotations

import ctypes
import os
import threading

import torch

from .. import _handle, _library, _settings, _warning, errors
from . import _installed, _patch, _shim, _switch, _whole

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
"""The plug-in, if ``enable()`` used it. PyTorch calls the plug-in as long as the process lives."""


def configure(config: str) -> None:
    """Changes the settings of a running allocator, or gives those of an allocator that is not yet
    made. Blocks and segments stay as they are.

    As with PyTorch's allocator, ``max_split_size_mb``, ``max_non_split_rounding_mb``,
    ``garbage_collection_threshold`` and ``roundup_power2_divisions`` return to their defaults
    unless ``config`` names them. All other settings stay.

    Raises:
        ConfigurationError: the settings have a mistake. The text lists what is accepted.
    """
    _library.library().cachalot_torch_configure(_settings.encoded(config))


def start(config: str | None) -> None:
    """Makes the allocator, with the settings of the environment if there are no others.

    The settings are checked first, so that a mistake is found on a machine without a GPU.
    """
    if config is not None:
        configure(config)
    if _handle.peek() is None:
        _settings.warn(_settings.notes(None))
    _handle.require()
    _installed.require_gpu()


def enabled() -> bool:
    """Returns whether cachalot is PyTorch's allocator, after a call of :func:`enable` that
    succeeded."""
    return bool(_in_place) or _whole.in_place()


def _plugin() -> torch.cuda.memory.CUDAPluggableAllocator:
    """Makes a plug-in with every hook."""
    shim = str(_shim.path())
    plugin = torch.cuda.memory.CUDAPluggableAllocator(shim, "cachalot_torch_alloc", "cachalot_torch_free")
    for setter, function in _HOOKS.items():
        getattr(plugin.allocator(), setter)(_library.address(function))
    begin = ctypes.cast(ctypes.CDLL(shim).cachalot_torch_begin_pool, ctypes.c_void_p).value
    plugin.allocator().set_begin_allocate_to_pool(begin)
    return plugin


def _plug_in(too_late: str) -> None:
    """Puts the plug-in in place."""
    plugin = _plugin()
    try:
        torch.cuda.memory.change_current_allocator(plugin)
    except RuntimeError as error:
        raise errors.UnavailableError(f"{too_late} ({error})") from error
    _in_place.append(plugin)


def enable(config: str | None = None, patch: bool = False, *, strict: bool = True) -> bool:
    """Puts cachalot in the place of PyTorch's CUDA allocator, in this process and for every device.
    Works once in a process, before the first use of CUDA.

    With PyTorch 2.6 to 2.15 and a C++ compiler, cachalot implements the whole interface of
    PyTorch's allocator, and everything in ``torch.cuda`` works as before. Otherwise, or if the environment
    variable ``CACHALOT_TORCH_PLUGIN`` is ``1``, cachalot is a plug-in of PyTorch
    (``CUDAPluggableAllocator``), after a warning that says why: pools, trees of captured graphs and
    memory shared between processes then do not work.

    If the environment variable ``CACHALOT_DISABLE`` is set, neither empty nor ``0``, then PyTorch keeps its own
    allocator, and a warning says so.

    Returns whether cachalot is PyTorch's allocator.

    Args:
        config: settings such as ``"policy:caching,expandable_segments:True"``, in the syntax of
            ``PYTORCH_CUDA_ALLOC_CONF``. ``None`` takes the settings of ``CACHALOT_CONF``, or else
            of PyTorch's variables. The settings are checked before everything else, also on a
            machine without a GPU. A ``RuntimeWarning`` names each setting without effect.
        patch: for the plug-in, whether cachalot's statistics, snapshots, history and memory
            fraction replace PyTorch's, which raise an error under every plug-in. The whole
            allocator needs no patch. The functions of ``cachalot_gpu.torch`` work in either case.
        strict: whether a failure raises an error. If not, PyTorch keeps its own allocator, a warning gives the reason, and
            :func:`metrics` has the reason as ``cachalot_left_out``. A second call raises an error in either case.

    Raises:
        UnavailableError: ``enable()`` was called before.
        UnavailableError: PyTorch has used its own allocator.
        ConfigurationError: the settings have a mistake. The text lists what is accepted.
        UnavailableError: there is no GPU, no driver, or a driver older than CUDA 11.4.
        UnavailableError: PyTorch has no plug-ins with pools.
    """
    with _lock:
        if enabled():
            raise errors.UnavailableError(
                "cachalot is PyTorch's allocator already; it can be enabled once in a process"
            )
        _switch.unless_left_out(lambda: _put_in_place(config, patch), strict)
        return enabled()


def _put_in_place(config: str | None, patch: bool) -> None:
    """Puts cachalot in the place of PyTorch's allocator, as :func:`enable` says."""
    if config is not None:
        _settings.checked(config)
    _installed.require_plugins()
    too_late = "enable() must come before the first use of CUDA: PyTorch's own allocator is in use already"
    if torch.cuda.is_initialized():
        raise errors.UnavailableError(too_late)
    start(config)
    try:
        _whole.install(too_late)
    except _shim.NotBuiltError as error:
        if not os.environ.get("CACHALOT_TORCH_PLUGIN"):
            _warning.warn(f"cachalot is a plug-in of PyTorch only: {error}")
        _plug_in(too_late)
        if patch:
            _patch.put_in_place()
