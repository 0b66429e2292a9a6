"""cachalot as the memory resource of RMM, for cuDF, cuML and other libraries of RAPIDS.

    import cachalot_gpu.rmm
    cachalot_gpu.rmm.enable()

Stream order: that of RMM. A buffer can be used at once on the stream of its allocation. It is freed
after the work submitted so far to the stream of the allocation and to the stream of the
deallocation.

Existing buffers keep their resource. RMM calls a function in Python for each allocation and each
deallocation. C++ programs use ``cachalot_cuda_mr.hpp``, which needs none.
"""

from __future__ import annotations

from typing import Any

from . import _adapter, _handle, _pool, _warning, errors

with _adapter.importing("rmm", "RMM", "rmm-cu13"):
    import rmm

__all__ = ["enable", "resource"]


def resource(device: int) -> rmm.mr.CallbackMemoryResource:
    """Returns a memory resource over the process's shared pool, for
    ``rmm.mr.set_per_device_resource`` and for adaptors such as
    ``rmm.mr.StatisticsResourceAdaptor``. Any thread may allocate.

    Args:
        device: the number of the device.

    Raises:
        UnavailableError: there is no GPU, no driver, or a driver older than CUDA 11.4.
    """
    source = _rmm.source

    def allocate(size: int, stream: Any) -> int:
        return source.malloc(size, device, _pool.number_of(stream))

    def deallocate(address: int, size: int, stream: Any) -> None:
        # RMM cannot pass an exception on from here.
        try:
            source.free(address, size, device, _pool.number_of(stream))
        except errors.CachalotError as error:
            _warning.warn(f"cachalot: RMM frees {address:#x}: {error}")

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)


def _put_in_place() -> None:
    """Gives every device a resource."""
    for device in range(_handle.device_count(_handle.require())):
        rmm.mr.set_per_device_resource(device, resource(device))


_rmm = _adapter.Adapter("rmm", _put_in_place)

enable = _rmm.enable
