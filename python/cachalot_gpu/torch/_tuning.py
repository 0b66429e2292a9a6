"""Settings that adjust themselves (``tune:auto``): the end of an iteration, and what was done."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from .. import _handle, _library
from ._installed import device_index

if TYPE_CHECKING:
    from ._installed import Device

_STAGES = {1: "off", 2: "recording", 3: "searching", 4: "trial"}


def iteration(device: Device = None) -> None:
    """Announces the end of an iteration, such as a training step, and the start of the next. With
    ``tune:auto`` settings become active here, and plans under ``policy:planned``. Never waits for the
    device or for a search."""
    _library.library().cachalot_iteration(_handle.require(), device_index(device))


def tuned(device: Device = None) -> dict[str, int | str | bool]:
    """Returns what ``tune:auto`` has done: its ``stage`` (``off``, ``recording``, ``searching`` or
    ``trial``), whether the active settings are other than the program's (``tuned``), and the counts and
    bytes of ``cachalot_tune_report``, such as ``switches``, ``held``, ``taken_back``, ``before_bytes``,
    ``predicted_bytes`` and ``after_bytes``."""
    report = _library.TuneReport(struct_size=ctypes.sizeof(_library.TuneReport))
    _library.library().cachalot_tuned(_handle.require(), device_index(device), ctypes.byref(report))
    figures: dict[str, int | str | bool] = {name: getattr(report, name) for name, *_ in report._fields_[1:]}
    return figures | {"stage": _STAGES.get(report.stage, "off"), "tuned": bool(report.tuned)}
