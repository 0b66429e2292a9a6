"""Warnings that name the line of the program, however deep in the package their reason is found."""

from __future__ import annotations

import os
import sys
import warnings

from .errors import CachalotWarning

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def warn(text: str) -> None:
    """Warns at the innermost line that is not of this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, CachalotWarning, stacklevel=level)
