"""cachalot as the memory manager of Numba (``numba-cuda``).

    import cachalot_gpu.numba
    cachalot_gpu.numba.enable()

before Numba's first use of a GPU. ``NUMBA_CUDA_MEMORY_MANAGER=cachalot_gpu.numba`` does the same
without a change of the program.

Stream order: Numba names no stream when it allocates or frees. All blocks belong to the legacy
default stream, and each free is a barrier on the GPU: the work of Numba's streams before the free
precedes their work after it. The host does not wait; Numba's own manager waits for the GPU. A
stream that is not ordered with the legacy default stream, such as a non-blocking stream of another
library (``cuda.external_stream``), needs :func:`cachalot_gpu.record_use` after its work was
submitted.
"""

from __future__ import annotations

from . import _adapter, _handle, errors

with _adapter.importing("numba", "numba-cuda", "numba-cuda"):
    from numba import cuda
    from numba.cuda.cudadrv import driver as _driver

__all__ = ["MemoryManager", "enable"]

_LEGACY = 1
"""``CU_STREAM_LEGACY``."""


class MemoryManager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):
    """Device memory from the process's shared pool. Pinned and managed memory are Numba's own."""

    def initialize(self) -> None:
        """Starts the use of a context."""
        self._source = _numba.source

    def memalloc(self, size: int) -> _driver.MemoryPointer:
        """Allocates ``size`` bytes on the device of the context.

        Raises:
            OutOfMemoryError: the device or the limit does not have the memory.
        """
        source, device, context = self._source, self.context.device.id, self.context.handle
        address = source.malloc(size, device, _LEGACY)

        def free() -> None:
            # Any thread may drop the last reference, also one without a context or with that of
            # another device.
            _driver.driver.cuCtxPushCurrent(context)
            try:
                # Work on the legacy stream waits for all of Numba's streams, and they wait for this
                # work in turn. A wait for an event would do without the byte, but a driver may drop
                # it if the event is complete.
                if address:
                    _driver.driver.cuMemsetD8Async(address, 0, 1, _LEGACY)
            finally:
                _driver.driver.cuCtxPopCurrent()
            source.free(address, size, device)

        pointer = _driver.binding.CUdeviceptr(address)
        return _driver.MemoryPointer(self.context, pointer, size, finalizer=free)

    def get_memory_info(self) -> _driver.MemoryInfo:
        """Returns the free and the total memory of the device, in bytes. Memory that the pool
        caches counts as used."""
        info = _handle.device_info(_handle.require(), self.context.device.id)
        return _driver.MemoryInfo(free=info.free_bytes, total=info.total_bytes)

    @property
    def interface_version(self) -> int:
        """The version of Numba's interface."""
        return 1


_numba_memory_manager = MemoryManager
"""The class that Numba looks for in the module that ``NUMBA_CUDA_MEMORY_MANAGER`` names."""


def _put_in_place() -> None:
    """Makes :class:`MemoryManager` Numba's own, unless Numba has a context."""
    if _driver._memory_manager is _driver.NumbaCUDAMemoryManager:
        raise errors.UnavailableError(
            "enable() must come before the first use of a GPU: Numba manages its memory already"
        )
    cuda.set_memory_manager(MemoryManager)


_numba = _adapter.Adapter("numba", _put_in_place)

enable = _numba.enable
