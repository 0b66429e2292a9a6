"""The shared library through ``ctypes``: a table of the functions that are called, and exceptions
for failures.

A call releases Python's lock, so that other threads run.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from typing import Any

from . import _files, errors

StatVisitor = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int64)
"""``cachalot_statistic_visitor``: receives a name and a value."""

Writer = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)
"""``cachalot_writer``: receives the next bytes."""

PICKLE = 2
"""``CACHALOT_PICKLE``: the format of a snapshot."""
WITHOUT_EVENTS = 0x1
"""``CACHALOT_WITHOUT_EVENTS``: a flag of ``SnapshotOptions``."""

SIMULATED = 1
"""``CACHALOT_SIMULATED``: a flag of ``Options``."""


class Options(Structure):
    """``cachalot_options``: how an allocator is made."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint32),
        ("device_count", c_uint32),
        ("devices", c_void_p),
        ("contexts", c_void_p),
        ("config", c_char_p),
        ("limit_bytes", c_uint64),
        ("simulated_bytes", c_uint64),
    ]


class Device(Structure):
    """``cachalot_device_info``: the state of one device, with all sizes in bytes."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("total_bytes", c_uint64),
        ("free_bytes", c_uint64),
        ("process_bytes", c_uint64),
        ("reserved_bytes", c_uint64),
        ("limit_bytes", c_uint64),
        ("leaked_bytes", c_uint64),
        ("ordinal", c_int),
        ("simulated", c_int),
        ("virtual_memory", c_int),
        ("reserved", c_uint32),
    ]


class Remaining(Structure):
    """``cachalot_remaining_memory``: the memory of a device in use, by name, in bytes."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("used_bytes", c_uint64),
        ("block_bytes", c_uint64),
        ("pending_bytes", c_uint64),
        ("cached_bytes", c_uint64),
        ("spare_bytes", c_uint64),
        ("leaked_bytes", c_uint64),
        ("other_bytes", c_uint64),
        ("pinned_bytes", c_uint64),
        ("parked_bytes", c_uint64),
        ("spilled_bytes", c_uint64),
    ]


class TuneReport(Structure):
    """``cachalot_tune_report``: what ``tune:auto`` has done."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("windows", c_uint64),
        ("searches", c_uint64),
        ("candidates", c_uint64),
        ("without_gain", c_uint64),
        ("switches", c_uint64),
        ("held", c_uint64),
        ("taken_back", c_uint64),
        ("search_us", c_uint64),
        ("before_bytes", c_uint64),
        ("predicted_bytes", c_uint64),
        ("after_bytes", c_uint64),
        ("given_back_bytes", c_uint64),
        ("retired_bytes", c_uint64),
        ("stage", c_int32),
        ("tuned", c_int32),
    ]


class ParkReport(Structure):
    """``cachalot_park_report``: where the memory of a tag is, with all sizes in bytes."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("mapped_bytes", c_uint64),
        ("parked_bytes", c_uint64),
        ("kept_bytes", c_uint64),
        ("pinned_bytes", c_uint64),
        ("ordinary_bytes", c_uint64),
        ("host_bytes", c_uint64),
        ("idle_host_bytes", c_uint64),
        ("state", c_int32),
        ("reserved", c_uint32),
    ]


class ParkTarget(Structure):
    """``cachalot_park_target``: the memory that is parked or woken."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("tag", c_uint64),
        ("stream", c_void_p),
        ("kind", c_int32),
        ("reserved", c_uint32),
    ]

    @classmethod
    def of_tag(cls, number: int) -> ParkTarget:
        """Returns the memory of every pool with the tag."""
        return cls(struct_size=ctypes.sizeof(cls), tag=number, kind=1)


class ParkOptions(Structure):
    """``cachalot_park_options``: the contents of parked memory, and what a park waits for."""

    _fields_ = [("struct_size", c_size_t), ("mode", c_int32), ("order", c_int32)]


class SnapshotOptions(Structure):
    """``cachalot_snapshot_options``: where a snapshot goes, and in which format."""

    _fields_ = [("struct_size", c_size_t), ("path", c_char_p), ("format", c_int32), ("flags", c_uint32)]


class TagLimits(Structure):
    """``cachalot_tag_limits``: the limits of a tag. 0 leaves a limit out."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("max_bytes", c_uint64),
        ("low_bytes", c_uint64),
        ("weight", c_uint32),
        ("clear", c_uint32),
    ]


class TagReport(Structure):
    """``cachalot_tag_report``: what the pools of a tag hold."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("charge_bytes", c_uint64),
        ("live_bytes", c_uint64),
        ("cached_bytes", c_uint64),
        ("max_bytes", c_uint64),
        ("low_bytes", c_uint64),
        ("refusals", c_uint64),
        ("given_bytes", c_uint64),
        ("weight", c_uint32),
        ("clear", c_uint32),
    ]


class Block(Structure):
    """``cachalot_block``: an allocated block, with all sizes in bytes."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("base", c_void_p),
        ("bytes", c_size_t),
        ("requested_bytes", c_size_t),
        ("stream_id", c_uint64),
        ("segment_base", c_void_p),
        ("segment_bytes", c_size_t),
        ("device", c_int),
        ("reserved", c_uint32),
    ]


class Pool(Structure):
    """``cachalot_pool``: the name of a private pool."""

    _fields_ = [("first", c_uint64), ("second", c_uint64)]


class Range(Structure):
    """``cachalot_range``: an elastic range. Its fields never change."""

    _fields_ = [
        ("allocator", c_void_p),
        ("number", c_uint64),
        ("base", c_void_p),
        ("bytes", c_size_t),
        ("page_bytes", c_size_t),
        ("device", c_int),
        ("reserved", c_uint32),
    ]


class Status(c_int32):
    """``cachalot_status``: a call that returns a failure raises an exception."""


def fields(record: Structure) -> dict[str, int]:
    """Returns the values of a structure by name, without its size and its reserved words."""
    names = (name for name, *_ in record._fields_)
    return {name: getattr(record, name) for name in names if name not in ("struct_size", "reserved")}


_HANDLE, _STREAM = c_void_p, c_void_p

_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    # name: type of the result, types of the arguments
    "cachalot_version_string": (c_char_p,),
    "cachalot_last_error": (c_char_p,),
    "cachalot_last_driver_code": (c_uint32,),
    "cachalot_status_text": (c_char_p, c_int32),
    "cachalot_create": (Status, POINTER(Options), POINTER(_HANDLE)),
    "cachalot_destroy": (Status, _HANDLE),
    "cachalot_configure": (Status, _HANDLE, c_char_p),
    "cachalot_get_config": (Status, _HANDLE, c_int, c_char_p, c_size_t, POINTER(c_size_t)),
    "cachalot_get_device_count": (Status, _HANDLE, POINTER(c_int)),
    "cachalot_get_device_info": (Status, _HANDLE, c_int, POINTER(Device)),
    "cachalot_malloc": (Status, _HANDLE, c_int, c_size_t, _STREAM, POINTER(c_void_p)),
    "cachalot_free": (Status, _HANDLE, c_void_p),
    "cachalot_record_stream": (Status, _HANDLE, c_void_p, _STREAM),
    "cachalot_stream_unreported": (Status, _HANDLE, c_int, _STREAM),
    "cachalot_get_block": (Status, _HANDLE, c_void_p, POINTER(Block)),
    "cachalot_empty_cache": (Status, _HANDLE, c_int),
    "cachalot_hold_begin": (Status, _HANDLE, c_int),
    "cachalot_hold_end": (Status, _HANDLE, c_int),
    "cachalot_begin_iteration": (Status, _HANDLE, c_int),
    "cachalot_get_tune_report": (Status, _HANDLE, c_int, POINTER(TuneReport)),
    "cachalot_maintain": (Status, _HANDLE, c_int, c_uint64, POINTER(c_int)),
    "cachalot_maintain_every": (Status, _HANDLE, c_uint64, c_uint64),
    "cachalot_explain_address": (Status, _HANDLE, c_void_p, c_char_p, c_size_t, POINTER(c_size_t)),
    "cachalot_record_use": (Status, _HANDLE, c_void_p, c_void_p),
    "cachalot_advise": (Status, _HANDLE, c_void_p, c_int32, POINTER(c_uint64)),
    "cachalot_pool_spill": (Status, _HANDLE, c_int, Pool, c_int),
    "cachalot_pool_set_tag": (Status, _HANDLE, c_int, Pool, c_uint64),
    "cachalot_pool_lend": (Status, _HANDLE, c_int, Pool),
    "cachalot_pool_reclaim": (Status, _HANDLE, c_int, Pool, _STREAM),
    "cachalot_park": (Status, _HANDLE, c_int, POINTER(ParkTarget), POINTER(ParkOptions)),
    "cachalot_wake_start": (Status, _HANDLE, c_int, POINTER(ParkTarget)),
    "cachalot_wake_wait": (Status, _HANDLE, c_int, POINTER(ParkTarget)),
    "cachalot_get_park_report": (Status, _HANDLE, c_int, POINTER(ParkTarget), POINTER(ParkReport)),
    "cachalot_tag_set_fallback": (Status, _HANDLE, c_int, c_uint64, c_int),
    "cachalot_get_remaining_memory": (Status, _HANDLE, c_int, POINTER(Remaining)),
    "cachalot_retain_host_memory": (Status, _HANDLE, c_int, c_uint64),
    "cachalot_tag_set_limits": (Status, _HANDLE, c_int, c_uint64, POINTER(TagLimits)),
    "cachalot_tag_trim": (Status, _HANDLE, c_int, c_uint64, c_size_t),
    "cachalot_get_tag_report": (Status, _HANDLE, c_int, c_uint64, POINTER(TagReport)),
    "cachalot_range_reserve": (Status, _HANDLE, c_int, c_size_t, POINTER(Range)),
    "cachalot_range_commit": (Status, Range, c_size_t, c_size_t, _STREAM),
    "cachalot_range_decommit": (Status, Range, c_size_t, c_size_t, _STREAM),
    "cachalot_range_release": (Status, Range),
    "cachalot_set_memory_fraction": (Status, _HANDLE, c_int, c_double),
    "cachalot_find_statistic": (Status, _HANDLE, c_int, c_char_p, POINTER(c_int64)),
    "cachalot_visit_statistics": (Status, _HANDLE, c_int, StatVisitor, c_void_p),
    "cachalot_reset_peaks": (Status, _HANDLE, c_int),
    "cachalot_reset_accumulated": (Status, _HANDLE, c_int),
    "cachalot_recorder_start": (Status, _HANDLE, c_char_p),
    "cachalot_trace_start": (Status, _HANDLE, c_int, c_size_t),
    "cachalot_write_metrics": (Status, _HANDLE, Writer, c_void_p),
    "cachalot_snapshot": (Status, _HANDLE, POINTER(SnapshotOptions), Writer, c_void_p),
    "cachalot_torch_allocator": (Status, POINTER(_HANDLE)),
    "cachalot_torch_peek": (Status, POINTER(_HANDLE)),
    "cachalot_torch_configure": (Status, c_char_p),
    "cachalot_torch_notes": (Status, c_char_p, Writer, c_void_p),
    "cachalot_torch_record_stacks": (Status, c_int),
}


def raise_failure(library: ctypes.CDLL, status: Status) -> None:
    """Raises the exception of a status that is a failure."""
    if status.value:
        text = library.cachalot_last_error() or library.cachalot_status_text(status.value)
        raise errors.of_status(status.value, text.decode(errors="replace"), library.cachalot_last_driver_code())


@cache
def library() -> ctypes.CDLL:
    """Loads the library at the first call, with symbols that the shims can use."""
    try:
        loaded = ctypes.CDLL(str(_files.LIBRARY), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise errors.CachalotError(f"the library of cachalot-gpu cannot be loaded: {error}") from error
    for name, (result, *arguments) in _PROTOTYPES.items():
        function = getattr(loaded, name)
        function.argtypes = arguments
        function.restype = result
        if result is Status:
            function.errcheck = lambda status, *_: raise_failure(loaded, status)
    return loaded


def bare(name: str) -> Any:
    """Returns a function whose status is a number, for frequent calls: the caller looks at it, and
    calls :func:`raise_failure`."""
    function = library()[name]
    _, *function.argtypes = _PROTOTYPES[name]
    function.restype = c_int
    return function


def version() -> str:
    """Returns the version of the library, such as ``"1.2.3"``: that of the package, unless
    ``CACHALOT_LIBRARY`` names another library."""
    text: bytes = library().cachalot_version_string()
    return text.decode()


def address(name: str) -> int:
    """Returns the address of a function of the library, which PyTorch calls without Python."""
    return ctypes.cast(getattr(library(), name), c_void_p).value or 0
