"""cachalot, a GPU memory allocator.

``cachalot_gpu.torch`` replaces PyTorch's CUDA allocator with cachalot, and ``cachalot_gpu.cupy``,
``rmm``, ``numba`` and ``cuda_core`` do the same for other libraries. :func:`enable_all` does it for
all of them. ``python -m cachalot_gpu`` runs the ``cachalot`` command, which replays, compares,
inspects and plans recorded programs without a GPU.
"""

from importlib.metadata import version as _installed_version

from ._all import enable_all
from ._files import command_path, library_path
from ._library import version
from ._planning import Buffer, Plan, plan
from ._pool import Usage, record_use, usage
from ._settings import check
from .errors import (
    CachalotError,
    CachalotWarning,
    ConfigurationError,
    OutOfMemoryError,
    UnavailableError,
)

__all__ = [
    "Buffer",
    "CachalotError",
    "CachalotWarning",
    "ConfigurationError",
    "OutOfMemoryError",
    "Plan",
    "UnavailableError",
    "Usage",
    "__version__",
    "check",
    "command_path",
    "enable_all",
    "library_path",
    "plan",
    "record_use",
    "usage",
    "version",
]

__version__ = _installed_version("cachalot-gpu")
