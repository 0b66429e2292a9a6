"""What the adapters of CuPy, RMM, Numba and cuda.core share."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from . import _pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def importing(adapter: str, library: str, package: str) -> Iterator[None]:
    """Says what to install if the library of an adapter is missing, around its imports.

    Args:
        adapter: the module of this package.
        library: the library in words.
        package: what pip installs.

    Raises:
        ModuleNotFoundError: the library is missing. An error about another module passes as it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        # Of `numba_cuda` and `cuda.core` the first word, which the names of the modules share.
        missing = (error.name or "").partition(".")[0]
        if missing.partition("_")[0] != adapter.partition("_")[0]:
            raise
        raise ModuleNotFoundError(
            f"cachalot_gpu.{adapter} needs {library}: pip install {package}", name=error.name
        ) from None


class Adapter:
    """A library on the process's pool. All methods may be called by any thread.

    Args:
        name: the library in :func:`cachalot_gpu.usage`.
        put_in_place: makes cachalot the allocator of the library. The pool is there when it is
            called.
    """

    def __init__(self, name: str, put_in_place: Callable[[], None]) -> None:
        self.name = name
        self._put_in_place = put_in_place

    @property
    def source(self) -> _pool.Source:
        """The requests of the library, which are counted. The first use makes the pool."""
        return _pool.source(self.name)

    def enable(self, config: str | None = None) -> bool:
        """Makes cachalot the allocator of the library, for every device. Memory that is already
        allocated stays where it is. The documentation of the module says more, for example about
        the order of streams.

        Returns whether cachalot allocates. With ``CACHALOT_DISABLE`` in the environment, the
        library keeps its own allocator, and a warning says so.

        Args:
            config: settings such as ``"policy:stitched"``. ``None`` takes those of
                ``CACHALOT_CONF``, or of the running pool.

        Raises:
            ConfigurationError: the settings have a mistake.
            UnavailableError: there is no GPU, no driver, or a driver older than CUDA 11.4; or the
                library cannot change its allocator any more.
        """
        if not _pool.start(config):
            return False
        self._put_in_place()
        return True
