"""The exceptions and the warning of this package. Each exception is a :class:`CachalotError`."""

from __future__ import annotations

FORKED = 358
"""``CACHALOT_ERROR_FORKED``: the process is a forked child, in which CUDA does not work."""


class CachalotWarning(RuntimeWarning):
    """A setting has no effect, or a library keeps its own allocator. The program continues."""


class CachalotError(RuntimeError):
    """A call failed, and nothing has changed unless the call says so. The text is the library's own
    message.

    Raised as it is for everything without a class below: a call that is not permitted now (a graph
    is being captured, memory is parked), an address or a tag that the allocator does not know, a
    failure of the CUDA driver (``driver_code``), and a forked child.
    """

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
    """What the program asks for has a mistake: settings, limits of a tag, or a buffer of a plan.
    The text names the mistake, and for settings lists what is accepted."""


class OutOfMemoryError(CachalotError, MemoryError):
    """The device has no memory left, or a limit was reached. The text is the whole report.

    PyTorch raises its own ``torch.OutOfMemoryError`` for tensors."""


class UnavailableError(CachalotError):
    """cachalot cannot work in this process: there is no GPU, no CUDA driver or one before CUDA
    11.4; PyTorch is too old or has no CUDA; or ``enable()`` comes too late or a second time."""


_BY_STATUS: dict[int, type[CachalotError]] = {
    160: ConfigurationError,
    210: OutOfMemoryError,
    214: OutOfMemoryError,
    310: UnavailableError,
    314: UnavailableError,
}


def of_status(status: int, text: str, driver_code: int) -> CachalotError:
    """Returns the exception for a status of ``cachalot.h``."""
    return _BY_STATUS.get(status, CachalotError)(text, status, driver_code)
