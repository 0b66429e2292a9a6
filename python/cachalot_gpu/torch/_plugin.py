"""cachalot in the place of PyTorch's CUDA allocator: as a whole allocator, else as a plug-in."""

from __future__ import annotations

import ctypes
import os
import threading

import torch

from .. import _handle, _library, _settings, _warning, errors
from . import _installed, _patch, _pinned, _shim, _switch, _whole

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


def enabled(*, pinned: bool = False) -> bool:
    """Returns whether cachalot is PyTorch's CUDA allocator; with ``pinned``, whether cachalot
    allocates PyTorch's pinned memory of the host. Both are true after a call of :func:`enable` that
    succeeded."""
    return _pinned.in_place() if pinned else bool(_in_place) or _whole.in_place()


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


def enable(
    config: str | None = None,
    *,
    cuda: bool = True,
    pinned: bool | str = False,
    patch: bool = False,
    strict: bool = True,
) -> bool:
    """Puts cachalot in the place of PyTorch's CUDA allocator, in this process and for every device,
    and with ``pinned`` of PyTorch's allocator of pinned memory of the host. Each works once in a
    process. After ``CACHALOT=1`` in the environment, the first call gives the program's settings.

    The CUDA allocator must come before the first use of CUDA. With PyTorch 2.6 to 2.15 and a C++
    compiler, cachalot implements the whole interface of PyTorch's allocator, and everything in
    ``torch.cuda`` works as before. Otherwise, or if the environment variable
    ``CACHALOT_TORCH_PLUGIN`` is ``1``, cachalot is a plug-in of PyTorch
    (``CUDAPluggableAllocator``), after a warning that says why: pools, trees of captured graphs and
    memory shared between processes then do not work.

    Pinned memory may come at any time, with PyTorch 2.8 to 2.15, a C++ compiler and CUDA's headers;
    memory that was pinned before stays PyTorch's. From then on, ``Tensor.pin_memory()``,
    ``pin_memory=True`` of factories and of ``DataLoader``, and the results of copies to pinned
    memory take the bytes that they need, and not the next power of two.
    ``torch.cuda.host_memory_stats()`` and its resets, and ``torch._C._host_emptyCache()``, work as
    before. The memory is on the NUMA node of the GPU that is in use at the first request. A forked
    child does not have it: workers of a ``DataLoader`` must not read pinned tensors of the parent.

    If the environment variable ``CACHALOT_DISABLE`` is set, neither empty nor ``0``, then PyTorch
    keeps its own allocators, and a warning says so.

    Returns whether everything that was asked for is in place.

    Args:
        config: settings such as ``"policy:caching,expandable_segments:True"``, in the syntax of
            ``PYTORCH_CUDA_ALLOC_CONF``. ``None`` takes the settings of ``CACHALOT_CONF``, or else
            of PyTorch's variables. The settings are checked before everything else, also on a
            machine without a GPU. A :class:`CachalotWarning` names each setting without effect.
        cuda: whether cachalot becomes the CUDA allocator. ``enable(cuda=False, pinned=True)`` is
            for pinned memory alone.
        pinned: whether cachalot allocates pinned memory of the host: ``True`` with its defaults
            there, ``"compact:0.01,exact_segments:True"``, or the settings themselves.
        patch: for the plug-in, whether cachalot's statistics, snapshots, history and memory
            fraction replace PyTorch's, which raise an error under every plug-in. The whole
            allocator needs no patch. The functions of ``cachalot_gpu.torch`` work in either case.
        strict: whether a failure raises an error. If not, PyTorch keeps its own allocator, a
            warning gives the reason, and :func:`metrics` has the reason as ``cachalot_left_out``. A
            second call raises an error in either case.

    Raises:
        ConfigurationError: the settings have a mistake. The text lists what is accepted.
        UnavailableError: ``enable()`` was called before; PyTorch has used its own CUDA allocator;
            there is no GPU, no driver, or a driver older than CUDA 11.4; PyTorch has no CUDA, or is
            too old; or nothing can be built for pinned memory.
    """
    with _lock:
        wants_pinned = pinned is not False
        if not cuda and not wants_pinned:
            raise ValueError("enable() has nothing to do: `cuda` and `pinned` are both False")
        if cuda and enabled():
            if not _switch.answer_environment():
                raise errors.UnavailableError(
                    "cachalot is PyTorch's allocator already; it can be enabled once in a process"
                )
            # By ``CACHALOT=1``. The settings of the program count all the same.
            if config is not None:
                configure(config)
            cuda = False
        if wants_pinned and enabled(pinned=True):
            raise errors.UnavailableError("cachalot allocates PyTorch's pinned memory already")
        if _switch.leave_out_if_disabled():
            return False
        of_host = pinned if isinstance(pinned, str) else ""
        # What can fail without a change comes first.
        library = _switch.attempt(lambda: _pinned.built(of_host), strict) if wants_pinned else None
        if cuda:
            _switch.attempt(lambda: _put_in_place(config, patch), strict)
        if library is not None:
            _switch.attempt(lambda: _pinned.install(library, of_host), strict)
        return (enabled() or not cuda) and (enabled(pinned=True) or not wants_pinned)


def _put_in_place(config: str | None, patch: bool) -> None:
    """Puts cachalot in the place of PyTorch's allocator, as :func:`enable` says."""
    if config is not None:
        _settings.checked(config)
    _installed.require_plugins()
    if not torch.cuda.is_initialized():
        # A mistake is told where the program asks, also on a machine without a GPU.
        start(config)
    take_over(patch=patch)


def take_over(*, patch: bool = False) -> None:
    """Puts cachalot in the place of PyTorch's allocator, and makes no allocator yet: as a whole
    allocator, or else as a plug-in."""
    _installed.require_plugins()
    too_late = "enable() must come before the first use of CUDA: PyTorch's own allocator is in use already"
    if torch.cuda.is_initialized():
        raise errors.UnavailableError(too_late)
    try:
        _whole.install(too_late)
    except _shim.NotBuiltError as error:
        if not os.environ.get("CACHALOT_TORCH_PLUGIN"):
            _warning.warn(f"cachalot is a plug-in of PyTorch only: {error}")
        _plug_in(too_late)
        if patch:
            _patch.put_in_place()
