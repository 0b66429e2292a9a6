"""cachalot as a memory resource of cuda.core.

    import cachalot_gpu.cuda_core
    from cuda.core import Device

    device = Device()
    device.set_current()
    # Or enable(), for all devices:
    device.memory_resource = cachalot_gpu.cuda_core.MemoryResource(device)
    stream = device.create_stream()
    buffer = device.allocate(1 << 20, stream=stream)

cuda.core has its own ``Device`` objects in each thread: ``enable()`` sets those of the calling
thread. Existing buffers keep their resource.

Stream order: a buffer can be used at once on the stream of its allocation. ``Buffer.close(stream)``
takes the work that was submitted before to this stream and to the stream of the allocation into
account. For work of a third stream, order one of the two after the work, or call
:func:`cachalot_gpu.record_use` after the work was submitted.
"""

from __future__ import annotations

from typing import Any

from . import _adapter, _pool

with _adapter.importing("cuda_core", "cuda.core", "cuda-core"):
    from cuda.core import Buffer, Device
    from cuda.core import MemoryResource as _MemoryResource

__all__ = ["MemoryResource", "enable"]


class MemoryResource(_MemoryResource):
    """Memory of the process's shared pool, on one device. All methods may be called by any thread.

    Raises:
        UnavailableError: there is no GPU, no driver, or a driver older than CUDA 11.4.
    """

    def __init__(self, device: Device | int | None = None) -> None:
        """Makes a resource for a device, by default the current one."""
        self._device = device if isinstance(device, int) else int((device or Device()).device_id)
        self._source = _cuda_core.source

    def allocate(self, size: int, *, stream: Any) -> Buffer:
        """Returns a buffer of ``size`` bytes, which ``stream`` may use at once. A stream that
        captures a graph must not be named: the graph would use memory that others get later.

        Raises:
            OutOfMemoryError: the device or the limit does not have the memory.
        """
        address = self._source.malloc(size, self._device, _pool.number_of(stream))
        return Buffer.from_handle(address, size, mr=self, stream=stream)

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        """Frees a buffer after the work submitted so far to ``stream`` and to the stream of the
        allocation. Never waits."""
        self._source.free(int(ptr), size, self._device, _pool.number_of(stream))

    @property
    def is_device_accessible(self) -> bool:
        """True: kernels use the memory."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """False: the host must not."""
        return False

    @property
    def is_managed(self) -> bool:
        """False: the memory stays on the device."""
        return False

    @property
    def device_id(self) -> int:
        """The number of the device."""
        return self._device


def _put_in_place() -> None:
    """Gives every device of the calling thread a resource."""
    for device in Device.get_all_devices():
        device.memory_resource = MemoryResource(device)


_cuda_core = _adapter.Adapter("cuda_core", _put_in_place)

enable = _cuda_core.enable
