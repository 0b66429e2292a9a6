"""The history of allocations, and snapshots of every segment and block.

Both have PyTorch's format: pytorch.org/memory_viz and torch's ``_memory_viz.py`` open them.

A flight recorder is on from the start, without stacks, unless the environment variable
``CACHALOT_RECORDER`` is ``0``. :func:`dump_snapshot` writes its events at any time, and the library
writes them to a file when memory runs out. :func:`record_memory_history` records in its place.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
from typing import TYPE_CHECKING, Any, Literal

from .. import _handle, _library

if TYPE_CHECKING:
    from ._installed import Device

MOST_ENTRIES = 1_000_000
"""The most events that are kept of each device. The ring is made when recording starts, with 50
bytes an event."""

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
    """Records the latest events of every device from now on, for :func:`memory_snapshot` and
    :func:`dump_snapshot`. Drops earlier records. Takes the arguments of
    ``torch.cuda.memory._record_memory_history``.

    Args:
        enabled: ``"all"``, ``"state"`` (the latest event only), or ``None`` to stop. The flight
            recorder then goes on, if it is on.
        context: ``None`` records no Python stack. A stack costs microseconds, and an event without
            a stack costs nanoseconds.
        stacks: both values record Python's frames, and neither records frames of C++.
        max_entries: how many events of each device are kept, 1,000,000 at most.
        device: changes nothing. The other arguments of PyTorch's function change nothing either.
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
    """Returns whether :func:`record_memory_history` is recording events."""
    return _recording


def snapshot(pool: tuple[int, ...] | None = None) -> dict[str, Any]:
    """Returns every segment with its blocks, the events of each device since
    :func:`record_memory_history`, and the settings, as ``torch.cuda.memory._snapshot()``. The heaps are read one after the other, so an exact
    picture needs a program that does not allocate meanwhile.

    Args:
        pool: the two numbers of a private pool, whose segments alone are returned; (0, 0) stands
            for all pools. PyTorch passes a third value, which says whether to return events.
    """
    parts: list[bytes] = []
    handle = _handle.peek()
    if handle is None:
        return {"segments": [], "device_traces": []}

    def write(_: Any, text: int, size: int) -> int:
        parts.append(ctypes.string_at(text, size))
        return 0

    with_events = _recording and (pool is None or len(pool) == 2 or bool(pool[2]))
    options = _library.SnapshotOptions(
        ctypes.sizeof(_library.SnapshotOptions),
        format=_library.PICKLE,
        flags=0 if with_events else _library.WITHOUT_EVENTS,
    )
    _library.library().cachalot_snapshot(handle, ctypes.byref(options), _library.Writer(write), None)
    whole: dict[str, Any] = pickle.loads(b"".join(parts))
    if pool is not None:
        first, second = pool[:2]
        if (first, second) != (0, 0):
            named = [segment for segment in whole["segments"] if segment["segment_pool_id"] == (first, second)]
            whole["segments"] = named
    return whole


def memory_snapshot(mempool_id: tuple[int, int] | None = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """Returns the segments of every pool, or of one private pool, as
    ``torch.cuda.memory_snapshot``. All sizes are in bytes. ``include_traces`` changes nothing,
    since the result has no events."""
    del include_traces
    segments: list[dict[str, Any]] = snapshot((*(mempool_id or (0, 0)), 0))["segments"]
    return segments


def dump_snapshot(filename: str | os.PathLike[str] = "dump_snapshot.pickle") -> None:
    """Writes a snapshot with every segment, event and setting to a file, as
    ``torch.cuda.memory._dump_snapshot``: JSON if the name ends in ``.json``, else a pickle. The
    file appears, or is replaced, when it is complete. Without :func:`record_memory_history`, the
    events are those of the flight recorder."""
    options = _library.SnapshotOptions(ctypes.sizeof(_library.SnapshotOptions), path=os.fsencode(filename))
    none = _library.Writer()
    _library.library().cachalot_snapshot(_handle.require(), ctypes.byref(options), none, None)
