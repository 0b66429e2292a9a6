"""cachalot as the memory resource of RMM, for cuDF, cuML and other libraries of RAPIDS.

    import cachalot_gpu.rmm
    cachalot_gpu.rmm.enable()

Stream order: that of RMM. A buffer can be used at once on the stream of its allocation. It is freed after the work
submitted so far to the stream of the allocation and to the stream of the deallocation.

RMM calls a function in Python for each allocation and each deallocation. C++ programs use ``cachalot_cuda_mr.hpp``,
which needs none.
"""

from __future__ import annotations

from typing import Any

from . import _handle, _pool, _warning, errors

try:
    import rmm
except ModuleNotFoundError as error:
    if error.name != "rmm":
        raise
    raise ModuleNotFoundError("cachalot_gpu.rmm needs RMM: pip install rmm-cu13", name="rmm") from None

__all__ = ["enable", "resource"]


def resource(device: int) -> rmm.mr.CallbackMemoryResource:
    """Returns a memory resource over the process's shared pool, for ``rmm.mr.set_per_device_resource`` and for adaptors
    such as ``rmm.mr.StatisticsResourceAdaptor``. Any thread may allocate.

    Args:
        device: the number of the device.

    Raises:
        UnavailableError: there is no GPU, no driver, or a driver older than CUDA 11.4.
    """
    source = _pool.source("rmm")

    def allocate(size: int, stream: Any) -> int:
        return source.malloc(size, device, _pool.number_of(stream))

    def deallocate(address: int, size: int, stream: Any) -> None:
        # RMM cannot pass an exception on from here.
        try:
            source.free(address, size, device, _pool.number_of(stream))
        except errors.CachalotError as error:
            _warning.warn(f"cachalot: RMM frees {address:#x}: {error}")

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)


def enable(config: str | None = None) -> bool:
    """Makes cachalot RMM's resource of every device. Buffers that exist stay with their resource.

    Returns whether cachalot allocates: not with ``CACHALOT_DISABLE``.

    Args:
        config: settings such as ``"policy:stitched"``; ``None`` takes those of ``CACHALOT_CONF``, or of the
            running pool.

    Raises:
        ConfigurationError: the settings have a mistake.
        UnavailableError: there is no GPU, no driver, or a driver older than CUDA 11.4.
    """
    if not _pool.start(config):
        return False
    for device in range(_handle.device_count(_handle.require())):
        rmm.mr.set_per_device_resource(device, resource(device))
    return True
