"""The ways in which cachalot stays out of a process without a change of the program: the variable
``CACHALOT_DISABLE`` of an operator, and failures that the program tolerates (``strict=False``)."""

from __future__ import annotations

from typing import Callable

from .. import _warning, errors
from .._settings import DISABLE, disabled

__all__ = ["disabled", "leave_out_if_disabled", "metrics", "unless_left_out"]

_reason: str | None = None
"""Why PyTorch keeps its own allocator, although the program has asked for cachalot."""


def _leave_out(reason: str) -> None:
    """Notes why PyTorch keeps its own allocator, and warns of it."""
    global _reason
    _reason = reason
    _warning.warn(f"PyTorch keeps its own allocator: {reason}")


def leave_out_if_disabled() -> bool:
    """Returns :func:`disabled`, after a warning if it is true."""
    if disabled():
        _leave_out(f"{DISABLE} is set")
    return disabled()


def unless_left_out(put_in_place: Callable[[], None], strict: bool) -> None:
    """Puts cachalot in place, unless the environment keeps cachalot out of the process. If cachalot cannot be put in
    place, raises the error, or without ``strict`` warns of it."""
    if leave_out_if_disabled():
        return
    try:
        put_in_place()
    except errors.CachalotError as error:
        if strict:
            raise
        _leave_out(str(error))


def metrics() -> str:
    """Returns the metrics of a process without cachalot: why it is left out, if the program asked for it."""
    if _reason is None:
        return "# EOF\n"
    label = _reason.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return (
        "# TYPE cachalot_left_out gauge\n"
        "# HELP cachalot_left_out 1 while PyTorch keeps its own allocator although the program asked for cachalot.\n"
        f'cachalot_left_out{{reason="{label}"}} 1\n'
        "# EOF\n"
    )
