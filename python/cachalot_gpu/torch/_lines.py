"""Where a script is: its own lines among those of libraries."""

from __future__ import annotations

import functools
import sys
import sysconfig
from pathlib import Path

_LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_PACKAGE = str(Path(__file__).parents[1])


@functools.cache
def _is_own(file: str) -> bool:
    """Returns whether a file is neither Python's, nor a library, nor of this package."""
    whole = str(Path(file).absolute())
    if file.startswith("<") or whole.startswith((_PACKAGE, *_LIBRARIES)):
        return False
    return "site-packages" not in whole and "dist-packages" not in whole


def own_line() -> str | None:
    """Returns the innermost line of the script that is running, as ``train.py:12``, or None in a
    thread of the backward pass."""
    frame = sys._getframe(1)
    while frame is not None:
        if _is_own(frame.f_code.co_filename):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None
