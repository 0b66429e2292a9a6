"""What happened, and what it led to: the history of allocations, and snapshots of every segment and block.

Both have the form of PyTorch's, so its viewer (pytorch.org/memory_viz) and its ``_memory_viz.py`` open them.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
from typing import TYPE_CHECKING, Any, Literal

from .. import _library
from . import _handle

if TYPE_CHECKING:
    from ._installed import Device

MOST_ENTRIES = 1_000_000
"""How many events of each device are kept at most, some 50 bytes each: the ring is made when recording begins."""

_recording = False


def record_memory_history(
    enabled: Literal["state", "all"] | None = "all",
    context: Literal["state", "alloc", "all"] | None = "all",
    stacks: Literal["python", "all"] = "all",
    max_entries: int = sys.maxsize,
    device: Device = None,
    *_ignored: Any,
    **_also_ignored: Any,
) -> None:
    """Records the latest events of every device from here on, for :func:`memory_snapshot` and
    :func:`dump_snapshot`. What was recorded before is dropped. Takes the arguments of
    ``torch.cuda.memory._record_memory_history``.

    Args:
        enabled: ``"all"``, ``"state"`` (the latest event only), or ``None`` to stop.
        context: whether the Python stack is recorded with each allocation: ``None`` for no. It costs microseconds;
            without, an event costs some nanoseconds.
        stacks: both mean Python's frames; those of C++ are not recorded.
        max_entries: how many events of each device are kept, 1,000,000 at most.
        device, and whatever else PyTorch's function takes, is accepted and changes nothing.
    """
    global _recording
    if enabled not in (None, "state", "all"):
        raise ValueError(f'enabled must be "all", "state" or None, not {enabled!r}')
    entries = {None: 0, "state": 1, "all": max(1, min(max_entries, MOST_ENTRIES))}[enabled]
    handle = _handle.require()
    _library.library().cachalot_torch_record_stacks(int(entries > 0 and context is not None))
    for index in range(_handle.device_count(handle)):
        _library.library().cachalot_trace_start(handle, index, entries)
    _recording = entries > 0


def history_enabled() -> bool:
    """Whether events are being recorded: :func:`record_memory_history` was called, and not ended."""
    return _recording


def snapshot(pool: tuple[int, ...] | None = None) -> dict[str, Any]:
    """Every segment with its blocks, the recorded events of each device, and the settings: as
    ``torch.cuda.memory._snapshot()``. Heaps are looked at one after the other, so stop the program for an exact
    picture.

    A ``pool`` other than (0, 0), which is no pool in particular, leaves the segments of that private pool. What follows
    its two numbers, if anything does, says whether events are wanted.
    """
    parts: list[bytes] = []
    handle = _handle.peek()
    if handle is None:
        return {"segments": [], "device_traces": []}

    def write(_: Any, text: int, size: int) -> int:
        parts.append(ctypes.string_at(text, size))
        return 0

    _library.library().cachalot_snapshot_as(handle, _library.PICKLE, _library.Writer(write), None)
    whole: dict[str, Any] = pickle.loads(b"".join(parts))
    if pool is not None:
        first, second, *events = pool
        if (first, second) != (0, 0):
            named = [segment for segment in whole["segments"] if segment["segment_pool_id"] == (first, second)]
            whole["segments"] = named
        if events and not events[0]:
            whole["device_traces"] = [[] for _ in whole["device_traces"]]
    return whole


def memory_snapshot(mempool_id: tuple[int, int] | None = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """The segments of every pool, or those of one private pool: as ``torch.cuda.memory_snapshot``. Sizes in bytes.
    ``include_traces`` changes nothing, as there: events are no part of what is returned."""
    del include_traces
    segments: list[dict[str, Any]] = snapshot(mempool_id)["segments"]
    return segments


def dump_snapshot(filename: str | os.PathLike[str] = "dump_snapshot.pickle") -> None:
    """Writes :func:`snapshot` to a file, as ``torch.cuda.memory._dump_snapshot`` does: a pickle, or JSON if its
    name ends in ``.json``. It is streamed, and the file is made or replaced once it is complete."""
    _library.library().cachalot_snapshot_to_file(_handle.require(), os.fsencode(filename))
