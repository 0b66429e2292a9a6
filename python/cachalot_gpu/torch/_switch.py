"""The ways in which cachalot comes into a process or stays out of it without a change of the
program: the variables ``CACHALOT`` and ``CACHALOT_DISABLE``, and failures that the program tolerates
(``strict=False``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .. import _warning, errors
from .._settings import DISABLE, disabled

__all__ = [
    "answer_environment",
    "attempt",
    "disabled",
    "leave_out_if_disabled",
    "metrics",
    "note_environment",
]

Result = TypeVar("Result")

_reason: str | None = None
"""Why PyTorch keeps its own allocator, although the program has asked for cachalot."""


_by_environment = False
"""Whether the environment has enabled cachalot, and the program has not asked for it since."""


def note_environment() -> None:
    """Notes that the environment has enabled cachalot."""
    global _by_environment
    _by_environment = True


def answer_environment() -> bool:
    """Returns whether the environment has enabled cachalot before the program's own call, once."""
    global _by_environment
    answer, _by_environment = _by_environment, False
    return answer


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


def attempt(step: Callable[[], Result], strict: bool) -> Result | None:
    """Takes a step that puts cachalot in place, and returns its result. If the step fails, raises
    the error, or without ``strict`` warns of it."""
    try:
        return step()
    except errors.CachalotError as error:
        if strict:
            raise
        _leave_out(str(error))
        return None


def metrics() -> str:
    """Returns the metrics of a process without cachalot: why it is left out, if the program asked
    for it."""
    if _reason is None:
        return "# EOF\n"
    label = _reason.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return (
        "# TYPE cachalot_left_out gauge\n"
        "# HELP cachalot_left_out 1 while PyTorch keeps its own allocator although the program asked for cachalot.\n"
        f'cachalot_left_out{{reason="{label}"}} 1\n'
        "# EOF\n"
    )
