"""Where the package's own files lie: the library, the ready-made shim, and what another shim is built from."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).parent

LIBRARY = Path(os.environ.get("CACHALOT_LIBRARY") or _PACKAGE / "lib" / "libcachalot.so")
"""The shared library. ``CACHALOT_LIBRARY`` names another, for those who build it themselves."""

PLAIN_SHIM = _PACKAGE / "lib" / "libcachalot_torch.so"
"""The shim that was built without PyTorch: it works with every version of it, and raises plain exceptions."""

SHIM_SOURCE = _PACKAGE / "source" / "shim.cpp"
"""What a shim for the installed PyTorch is compiled from."""

INCLUDE = _PACKAGE / "source"
"""The folder of the C headers."""
