"""The ways in which cachalot stays out of a process without a change of the program: the variable
``CACHALOT_DISABLE`` of an operator, and failures that the program tolerates (``strict=False``)."""

from __future__ import annotations

import os
import warnings

_VARIABLE = "CACHALOT_DISABLE"

_reason: str | None = None
"""Why PyTorch keeps its own allocator, although the program has asked for cachalot."""


def disabled() -> bool:
    """Returns whether the environment keeps cachalot out of the process: ``CACHALOT_DISABLE`` is set, and neither empty
    nor ``0``."""
    return os.environ.get(_VARIABLE, "") not in ("", "0")


def leave_out(reason: str, depth: int = 3) -> None:
    """Notes why PyTorch keeps its own allocator, and warns of it at the caller's caller, or ``depth`` calls above."""
    global _reason
    _reason = reason
    warnings.warn(f"PyTorch keeps its own allocator: {reason}", RuntimeWarning, stacklevel=depth)


def leave_out_if_disabled() -> bool:
    """Returns :func:`disabled`, after a warning if it is true."""
    if disabled():
        leave_out(f"{_VARIABLE} is set", depth=4)
    return disabled()


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
