"""The exceptions: one class for each kind of failure that a program may want to handle by
itself."""

from __future__ import annotations


class CachalotError(RuntimeError):
    """A call of the library failed. The text is the library's own message."""

    status: int
    """The number of a ``CACHALOT_ERROR_…`` of ``cachalot.h``, or 0 if no call of the library was
    involved."""
    driver_code: int
    """The ``CUresult`` of the CUDA driver, or 0 if the driver was not involved."""

    def __init__(self, text: str, status: int = 0, driver_code: int = 0) -> None:
        super().__init__(text)
        self.status = status
        self.driver_code = driver_code


class ConfigurationError(CachalotError, ValueError):
    """The settings have a mistake. The text names the mistake, and lists what is accepted."""


class PlanningError(CachalotError, ValueError):
    """A buffer has a mistake, or cannot be planned. The text gives the index of the buffer."""


class OutOfDeviceMemoryError(CachalotError, MemoryError):
    """The memory of the device has run out, or a limit was reached. The text is the whole
    report."""


class DriverError(CachalotError):
    """A call of the CUDA driver failed, or the context is lost."""


class NoGpuError(DriverError):
    """There is no CUDA driver, or it shows no device."""


class DriverTooOldError(DriverError):
    """The CUDA driver is older than CUDA 11.4."""


class TorchTooOldError(CachalotError):
    """The installed PyTorch has no plug-ins with pools, which PyTorch 2.2 added."""


class EnabledTooLateError(CachalotError):
    """PyTorch has used its own allocator, which cannot be replaced any more in this process."""


class AlreadyEnabledError(CachalotError):
    """``enable()`` was called before in this process."""


class ForkedError(CachalotError):
    """The process is a forked child, in which CUDA does not work."""


_BY_STATUS: dict[int, type[CachalotError]] = {
    160: ConfigurationError,
    210: OutOfDeviceMemoryError,
    214: OutOfDeviceMemoryError,
    310: NoGpuError,
    314: DriverTooOldError,
    320: DriverError,
    350: DriverError,
    354: DriverError,
    358: ForkedError,
}


def of_status(status: int, text: str, driver_code: int) -> CachalotError:
    """Returns the exception for a status of ``cachalot.h``."""
    return _BY_STATUS.get(status, CachalotError)(text, status, driver_code)
