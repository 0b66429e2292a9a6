"""What can go wrong: one exception class for each kind of failure that a program may want to tell apart."""

from __future__ import annotations


class CachalotError(RuntimeError):
    """A call of the library failed. The text says what went wrong, in the library's own words."""

    status: int
    """The number of the failure: a ``CACHALOT_ERROR_…`` of ``cachalot.h``; 0 if no call of the library was involved."""
    driver_code: int
    """The CUDA driver's own code (a ``CUresult``); 0 if the driver had no part in it."""

    def __init__(self, text: str, status: int = 0, driver_code: int = 0) -> None:
        super().__init__(text)
        self.status = status
        self.driver_code = driver_code


class ConfigurationError(CachalotError, ValueError):
    """The configuration string cannot be understood; the text names the part and lists what is accepted."""


class OutOfDeviceMemoryError(CachalotError, MemoryError):
    """The device's memory has run out, or a limit was reached; the text is the whole report."""


class DriverError(CachalotError):
    """The CUDA driver refused, or lost its context."""


class NoGpuError(DriverError):
    """There is no CUDA driver, or it shows no device."""


class DriverTooOldError(DriverError):
    """The CUDA driver is older than CUDA 11.4."""


class TorchTooOldError(CachalotError):
    """The installed PyTorch cannot take a plug-in with all that it needs."""


class EnabledTooLateError(CachalotError):
    """PyTorch has used its own allocator already, which cannot be changed any more in this process."""


class AlreadyEnabledError(CachalotError):
    """The plug-in is enabled already."""


class ForkedError(CachalotError):
    """This is a forked child process, in which CUDA does not work."""


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
    """The exception for a status of ``cachalot.h``."""
    return _BY_STATUS.get(status, CachalotError)(text, status, driver_code)
