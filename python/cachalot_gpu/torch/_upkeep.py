"""Upkeep at idle moments, and the end of an iteration."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Literal, NamedTuple

from .. import _handle, _library
from ._installed import device_index

if TYPE_CHECKING:
    from ._installed import Device

    Stage = Literal["off", "recording", "searching", "trial"]

_STAGES: dict[int, Stage] = {1: "off", 2: "recording", 3: "searching", 4: "trial"}
"""``cachalot_tune_stage``."""


def maintain(max_us: int = 2000, device: Device = None) -> bool:
    """Does what requests under ``policy:stitched`` have put off: removes the mappings that moved
    pages have left, and returns memory beyond the budget to the driver. Under ``reclaim:auto``,
    gives idle memory back to the driver if that is worth the cost. Maps pages ahead where elastic
    tensors have grown. With ``tune:auto`` settings become active here. In other cases there is
    nothing to do. Never waits for the device.

    Args:
        max_us: about how many microseconds of the driver's time the call may take.
        device: the device, by default the current one.

    Returns whether something is left for another call.
    """
    more = ctypes.c_int()
    _library.library().cachalot_maintain(_handle.require(), device_index(device), max_us, ctypes.byref(more))
    return bool(more.value)


def maintain_every(seconds: float, max_us: int = 2000) -> None:
    """Lets a thread of the library call :func:`maintain` for every device, with a pause of
    ``seconds`` between two rounds. Another call changes the pace; 0 ends the thread."""
    _library.library().cachalot_maintain_every(_handle.require(), round(seconds * 1e6), max_us)


def end_iteration(device: Device = None) -> None:
    """Announces the end of an iteration, such as a training step, and the start of the next. With
    ``tune:auto`` settings become active here, and plans under ``policy:planned``. Never waits for
    the device or for a search."""
    _library.library().cachalot_begin_iteration(_handle.require(), device_index(device))


class Tuning(NamedTuple):
    """The state of ``tune:auto``."""

    stage: Stage
    """``"off"`` without ``tune:auto``."""
    is_tuned: bool
    """Whether the active settings are other than the program's."""


def tuning(device: Device = None) -> Tuning:
    """Returns the state of ``tune:auto``. What it has done so far, and the peaks before and after,
    are the :func:`statistics` whose names start with ``tune.``."""
    report = _library.TuneReport(struct_size=ctypes.sizeof(_library.TuneReport))
    _library.library().cachalot_get_tune_report(_handle.require(), device_index(device), ctypes.byref(report))
    return Tuning(_STAGES.get(report.stage, "off"), bool(report.tuned))
