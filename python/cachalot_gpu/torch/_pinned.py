"""cachalot in the place of PyTorch's allocator of pinned memory."""

from __future__ import annotations

import ctypes
import threading

import torch

from .. import _settings, errors
from . import _installed, _shim, _switch

_SINCE = (2, 8)
"""The first version of PyTorch in which an allocator of pinned memory can be set."""

_lock = threading.Lock()
_in_place: list[ctypes.CDLL] = []
"""The library with the allocator, after it was put in place."""


def pinned_enabled() -> bool:
    """Returns whether cachalot allocates PyTorch's pinned memory, after a call of
    :func:`enable_pinned` that succeeded."""
    return bool(_in_place)


def _require_setter() -> None:
    """Raises an error if the installed PyTorch has a fixed allocator of pinned memory."""
    if torch.version.cuda is None:
        raise errors.UnavailableError(f"PyTorch {torch.__version__} was built without CUDA")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _SINCE:
        since = ".".join(map(str, _SINCE))
        raise errors.UnavailableError(
            f"PyTorch {torch.__version__} sets no allocator of pinned memory: {since} or later is needed"
        )


def enable_pinned(config: str | None = None, *, strict: bool = True) -> bool:
    """Puts cachalot in the place of PyTorch's allocator of pinned memory, in this process. Works once
    in a process, at any time; memory that was pinned before stays PyTorch's.

    From then on, ``Tensor.pin_memory()``, ``pin_memory=True`` of factories and of ``DataLoader``, and
    the results of copies to pinned memory take the bytes that they need, and not the next power of two.
    ``torch.cuda.host_memory_stats()`` and its resets, and ``torch._C._host_emptyCache()``, work as
    before. The memory is on the NUMA node of the GPU that is in use at the first request. A forked
    child does not have it: workers of a ``DataLoader`` must not read pinned tensors of the parent.

    This does not depend on :func:`enable`, and works with PyTorch 2.8 to 2.15, a C++ compiler and CUDA's
    headers.

    With ``CACHALOT_DISABLE``, PyTorch keeps its own allocator, as for :func:`enable`.

    Returns whether cachalot allocates PyTorch's pinned memory.

    Args:
        config: settings such as ``"compact:0.1"``, in the syntax of ``PYTORCH_CUDA_ALLOC_CONF``. ``None``
            takes the defaults for host memory, ``"compact:0.01,exact_segments:True"``.
        strict: whether a failure raises an error, as for :func:`enable`.

    Raises:
        UnavailableError: ``enable_pinned()`` was called before.
        ConfigurationError: the settings have a mistake. The text lists what is accepted.
        UnavailableError: PyTorch has no CUDA, or finds no GPU.
        UnavailableError: PyTorch is older than 2.8, and sets no allocator of pinned memory.
        CachalotError: nothing can be built for the installed PyTorch. The text gives the reason.
    """
    with _lock:
        if pinned_enabled():
            raise errors.UnavailableError("cachalot allocates PyTorch's pinned memory already")
        _switch.unless_left_out(lambda: _put_in_place("" if config is None else config), strict)
        return pinned_enabled()


def _put_in_place(config: str) -> None:
    """Puts cachalot in the place of PyTorch's allocator of pinned memory, as :func:`enable_pinned` says."""
    _settings.check(config)
    _require_setter()
    try:
        built = _shim.pinned()
    except _shim.NotBuiltError as error:
        raise errors.UnavailableError(f"cachalot cannot allocate PyTorch's pinned memory: {error}") from error
    _installed.require_gpu()
    library = ctypes.CDLL(str(built))
    library.cachalot_torch_install_pinned.restype = ctypes.c_char_p
    if failure := library.cachalot_torch_install_pinned(_settings.encoded(config)):
        raise errors.CachalotError(failure.decode(errors="replace").splitlines()[0])
    _in_place.append(library)
