"""cachalot's statistics and snapshots in the place of PyTorch's.

PyTorch's Python code takes all of them from a few functions of ``torch._C``, which raise an error
under a plug-in. This module replaces those functions. Every function above them
(``torch.cuda.memory_stats``, ``memory_summary``, ``max_memory_reserved``,
``torch.accelerator.memory_stats``) then works in the form of the installed version, also where a
program imported the function before.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _history, _limits, _statistics


def _record_legacy(enabled: bool, *_: Any) -> None:
    """Replaces ``_cuda_record_memory_history_legacy``, the function of PyTorch 2.0 that takes a
    bool."""
    _history.record_memory_history("all" if enabled else None)


_REPLACED = {
    "_cuda_memoryStats": _statistics.nested_stats,
    "_cuda_resetPeakMemoryStats": _statistics.reset_peak_memory_stats,
    "_cuda_resetAccumulatedMemoryStats": _statistics.reset_accumulated_memory_stats,
    "_cuda_setMemoryFraction": _limits.set_per_process_memory_fraction,
    "_cuda_getMemoryFraction": _limits.get_per_process_memory_fraction,
    "_cuda_memorySnapshot": _history.snapshot,
    "_cuda_record_memory_history": _history.record_memory_history,
    "_cuda_record_memory_history_legacy": _record_legacy,
    "_cuda_isHistoryEnabled": _history.history_enabled,
    "_accelerator_getDeviceStats": _statistics.nested_stats,
    "_accelerator_resetPeakStats": _statistics.reset_peak_memory_stats,
    "_accelerator_resetAccumulatedStats": _statistics.reset_accumulated_memory_stats,
}


def _dump_snapshot(filename: str = "dump_snapshot.pickle", *_: Any, **__: Any) -> None:
    """Replaces ``torch.cuda.memory._dump_snapshot``. Leaves out what PyTorch adds to the frames of
    torch.fx."""
    _history.dump_snapshot(filename)


def put_in_place() -> None:
    """Replaces the functions that the installed version has, for the rest of the process."""
    for name, function in _REPLACED.items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, function)
    torch.cuda.memory._dump_snapshot = _dump_snapshot
