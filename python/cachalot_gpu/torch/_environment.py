"""cachalot enabled by the environment: ``CACHALOT=1``."""

from __future__ import annotations

import sys
import warnings

from .. import _settings
from . import _plugin, _switch


def enable() -> None:
    """Puts cachalot in the place of PyTorch's CUDA allocator, at the end of ``import torch``.

    The driver is not loaded: the allocator is made by the first use of CUDA, which may be in a
    forked child, and reads PyTorch's variables then, as PyTorch's own allocator does.

    Raises:
        CachalotError: PyTorch keeps its own allocator. The text gives the reason.
    """
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if not _switch.leave_out_if_disabled():
            _settings.warn(_settings.notes(None))
            _plugin.take_over(patch=True)
            _switch.note_environment()
    # Not as warnings, which would name a line of PyTorch, and which a program may turn into errors.
    for warning in told:
        print(f"cachalot: {_first_line(str(warning.message).removeprefix('cachalot: '))}", file=sys.stderr)


def _first_line(text: str) -> str:
    """Returns a text up to the output of another program, such as a compiler's messages."""
    return text.split("\n", 1)[0]
