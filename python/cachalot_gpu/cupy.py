"""cachalot as the allocator of CuPy.

    import cachalot_gpu.cupy
    cachalot_gpu.cupy.enable()

Existing arrays keep the memory of CuPy's pool, which keeps its cached memory until
``cupy.get_default_memory_pool().free_all_blocks()``.

Stream order: an array belongs to the stream that is current when the array is allocated, as with
CuPy's own pool. The array can be used at once on this stream, and its memory serves later requests
of this stream, after the work submitted before the last reference went away. If another stream is
current then, the memory is also kept until the work of that stream is done, which CuPy's own pool
does not do. For work of a third stream, call :func:`cachalot_gpu.record_use` after the work was
submitted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from . import _adapter, _cupy_native, _files, _pool

with _adapter.importing("cupy", "CuPy", "cupy-cuda13x"):
    import cupy
    from cupy.cuda import CFunctionAllocator, MemoryPointer, UnownedMemory, get_current_stream
    from cupy.cuda.device import get_device_id

__all__ = ["allocate", "enable"]


class _Block:
    """Owns a block, and frees it with the last array that uses it."""

    __slots__ = ("address", "device", "size", "source", "stream")

    def __init__(self, size: int) -> None:
        # 0 until there is a block, for __del__.
        self.address = 0
        self.source = _cupy.source
        self.size, self.device, self.stream = size, get_device_id(), get_current_stream().ptr
        self.address = self.source.malloc(size, self.device, self.stream)

    def __del__(self) -> None:
        """Frees the block after the work of the current stream."""
        if self.address:
            current = get_current_stream().ptr
            self.source.free(self.address, self.size, self.device, None if current == self.stream else current)


@cache
def _native() -> tuple[_cupy_native.Source, Callable[[int], MemoryPointer]] | None:
    """Returns CuPy's way to C functions that allocate, if the package and this CuPy have what it
    takes."""
    stream = _cupy_native.current_stream() if _files.CUPY.is_file() else None
    if stream is None:
        return None
    source = _cupy_native.Source(stream)
    _pool.count("cupy", source)
    return source, CFunctionAllocator(source.address, source.malloc_address, source.free_address, source).malloc


def allocate(size: int) -> MemoryPointer:
    """Allocates ``size`` bytes on the current device and stream, for ``cupy.cuda.set_allocator``
    and ``cupy.cuda.using_allocator``. May be called by any thread.

    Raises:
        OutOfMemoryError: the device or the limit does not have the memory.
    """
    native = _native()
    if native is None:
        block = _Block(size)
        return MemoryPointer(UnownedMemory(block.address, size, block, block.device), 0)
    source, malloc = native
    pointer = malloc(size)
    if size and not pointer.ptr:
        source.raise_failure()
        # CuPy could not tell the current stream in C, and raises the reason here.
        get_current_stream()
        raise MemoryError
    return pointer


def _put_in_place() -> None:
    """Makes :func:`allocate` CuPy's allocator."""
    # Now, and not by the first requests of several threads.
    _native()
    cupy.cuda.set_allocator(allocate)


_cupy = _adapter.Adapter("cupy", _put_in_place)

enable = _cupy.enable
