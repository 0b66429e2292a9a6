"""cachalot: a GPU memory allocator.

``cachalot_gpu.torch`` puts it under PyTorch; ``cachalot_gpu.library_path()`` is the shared library, for programs that load
it themselves with the functions of ``cachalot.h``.
"""

from ._files import LIBRARY as _LIBRARY
from ._library import version
from .errors import (
    AlreadyEnabledError,
    CachalotError,
    ConfigurationError,
    DriverError,
    DriverTooOldError,
    EnabledTooLateError,
    ForkedError,
    NoGpuError,
    OutOfDeviceMemoryError,
    TorchTooOldError,
)

__all__ = [
    "AlreadyEnabledError",
    "CachalotError",
    "ConfigurationError",
    "DriverError",
    "DriverTooOldError",
    "EnabledTooLateError",
    "ForkedError",
    "NoGpuError",
    "OutOfDeviceMemoryError",
    "TorchTooOldError",
    "library_path",
    "version",
]


def library_path() -> str:
    """The path of the shared library, ``libcachalot.so``."""
    return str(_LIBRARY)
