"""The package's own files: the library, the command, the shim, and the sources of another shim."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

from . import errors

_PACKAGE = Path(__file__).parent


def _library() -> Path:
    """Returns the library of the package, whose file has the library's SONAME."""
    folder = _PACKAGE / "lib"
    return next(folder.glob("libcachalot.so.*"), folder / "libcachalot.so")


LIBRARY = Path(os.environ.get("CACHALOT_LIBRARY") or _library())
"""The shared library, or the one that ``CACHALOT_LIBRARY`` names."""

PLAIN_SHIM = _PACKAGE / "lib" / "libcachalot_torch.so"
"""The shim that was built without PyTorch. It works with every version of PyTorch, and raises plain
exceptions."""

PIECES = _PACKAGE / "lib" / "torch"
"""The folder of the C++ that was compiled for known builds of PyTorch, if the package has it."""

CUPY = _PACKAGE / "lib" / "libcachalot_cupy.so"
"""The functions that CuPy calls without Python."""

SOURCE = _PACKAGE / "source"
"""The folder of the C headers, and of the C++ that is compiled for the installed PyTorch."""

SHIM_SOURCE = SOURCE / "shim.cpp"
"""The source of a shim for the installed PyTorch."""


def library_path() -> str:
    """Returns the path of the shared library, for programs that call the functions of
    ``cachalot.h`` themselves."""
    return str(LIBRARY)


def command_path() -> str:
    """Returns the path of the ``cachalot`` command, which pip installs among the scripts of the
    environment.

    Raises:
        CachalotError: the command was removed, or the package was copied without it.
    """
    installed = importlib.metadata.files("cachalot-gpu") or []
    places = [Path(file.locate()) for file in installed if file.parts[-2:] == ("bin", "cachalot")]
    # `pip install --target` moves the scripts, and leaves the list of installed files as it was.
    places.append(_PACKAGE.parent / "bin" / "cachalot")
    for place in places:
        if place.is_file():
            return str(place.resolve())
    raise errors.CachalotError(f"the cachalot command is not at {places[0]}: install cachalot-gpu again")
