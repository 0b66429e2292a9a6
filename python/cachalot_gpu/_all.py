"""Every installed library on one pool."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

from . import _pool

LIBRARIES = {"torch": "torch", "cupy": "cupy", "rmm": "rmm", "numba": "numba_cuda", "cuda_core": "cuda.core"}
"""The modules of this package with an adapter, each with the module that it needs. PyTorch comes
first: it takes an allocator only before the first use of CUDA."""


def _installed(module: str) -> bool:
    """Returns whether a module can be imported, without importing more than its packages."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def enable_all(config: str | None = None) -> tuple[str, ...]:
    """Puts every installed library on one pool: PyTorch with CUDA, CuPy, RMM, Numba and cuda.core.
    Imports each of them. Call it before the first use of CUDA.

    The libraries then share one cache, one limit and one set of settings. Memory that one of them
    has freed serves the others: on the same stream immediately, and on other streams when memory is
    short, or always under ``"policy:stitched"``. :func:`cachalot_gpu.usage` has the figures of each
    library.

    Returns the names of the libraries that allocate from the pool: none with ``CACHALOT_DISABLE``.

    Args:
        config: settings such as ``"policy:stitched"``; ``None`` takes those of ``CACHALOT_CONF``.

    Raises:
        ConfigurationError: the settings have a mistake. No library has changed then.
        UnavailableError: there is no GPU, no driver, or a driver older than CUDA 11.4; or PyTorch
            or Numba have used CUDA already.
    """
    if not _pool.start(config):
        return ()
    found = [name for name, module in LIBRARIES.items() if _installed(module)]
    enabled = []
    for name in found:
        adapter = importlib.import_module(f"cachalot_gpu.{name}")
        if name == "torch" and importlib.import_module("torch").version.cuda is None:
            continue
        if (name == "torch" and adapter.enabled()) or adapter.enable():
            enabled.append(name)
    return tuple(enabled)
