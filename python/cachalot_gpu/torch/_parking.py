"""Memory that goes back to the GPU for a while, and returns at the same addresses."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import TYPE_CHECKING

import torch

from .. import _handle, _library, errors
from . import _shim, _whole
from ._installed import device_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ._installed import Device

_STATES = {1: "awake", 2: "asleep", 3: "waking"}
"""``cachalot_park_state``."""

_UNKNOWN_TAG = 153
"""``CACHALOT_ERROR_UNKNOWN_TAG``."""

_lock = threading.Lock()
_numbers: dict[str, int] = {}
"""The number of every tag in the library."""
_used: set[tuple[str, int]] = set()
"""Every tag on every device where a pool has it, or had it."""
_pools: dict[tuple[str, int], torch.cuda.MemPool] = {}
"""The pool of every tag on every device. A pool lives as long as the process: its tensors may."""


def tagged_pool(tag: str, device: Device = None) -> torch.cuda.MemPool:
    """Returns the pool whose memory is parked under ``tag``, which is made at the first call. Its
    ``id`` is the ``pool`` of captured graphs whose memory is to be parked, too. Needs :func:`enable`.

    Raises:
        CachalotError: cachalot is not PyTorch's whole allocator, or has a policy that parks nothing.
    """
    require()
    index = device_index(device)
    with _lock:
        if (tag, index) not in _pools:
            with torch.cuda.device(index):
                pool = torch.cuda.MemPool()
            _give(pool.id, tag, index)
            _pools[tag, index] = pool
        return _pools[tag, index]


def tag_pool(pool: tuple[int, int], tag: str, device: Device = None) -> None:
    """Parks the memory of a pool of PyTorch under ``tag`` from now on. A pool is named by the ``id`` of a
    ``torch.cuda.MemPool``, or by a ``torch.cuda.graph_pool_handle()`` into which a capture has started. Memory
    that the pool has already is not parked. Needs :func:`enable`.

    Raises:
        CachalotError: cachalot is not PyTorch's whole allocator, or has a policy that parks nothing; there is no such
            pool, or it has its own allocator; memory of the pool or of the tag is parked.
    """
    require()
    index = device_index(device)
    with _lock:
        _give(pool, tag, index)


def require() -> None:
    """Raises an error unless cachalot is PyTorch's whole allocator, which tags need."""
    if not _whole.in_place():
        raise errors.UnavailableError(f"tags need enable(), and PyTorch {_shim.WHOLE_VERSIONS} with a C++ compiler")


def _give(pool: tuple[int, int], tag: str, index: int) -> None:
    """Gives a tag to a pool, under the lock."""
    number = _numbers.setdefault(tag, len(_numbers) + 1)
    _library.library().cachalot_pool_tag(_handle.require(), index, _library.Pool(*pool), number)
    _used.add((tag, index))


@contextlib.contextmanager
def tag(name: str, device: Device = None) -> Iterator[None]:
    """Leads the requests of this thread, inside of ``with tag("weights"):``, into memory that can be parked
    under the name. Needs :func:`enable`."""
    with torch.cuda.use_mem_pool(tagged_pool(name, device), device=device_index(device)):
        yield


def _each(tags: tuple[str, ...], index: int, call: Callable[[int], None]) -> None:
    """Calls ``call`` with the number of each tag on a device; of all tags there if none is named. Of all tags,
    those are left out whose pools are gone, as that of a captured graph may be."""
    with _lock:
        known = sorted((name for name, device in _used if device == index), key=_numbers.__getitem__)
        for name in tags:
            if name not in known:
                raise errors.CachalotError(f"no memory has the tag {name!r} on device {index}: use tag() first")
        numbers = [_numbers[name] for name in tags or known]
    for number in numbers:
        try:
            call(number)
        except errors.CachalotError as error:
            if tags or error.status != _UNKNOWN_TAG:
                raise


def park(*tags: str, keep: bool = True, zero: bool = False, streams: bool = False, device: Device = None) -> None:
    """Gives the memory of the tags back to the GPU; of all tags if none is named. Tensors and captured
    graphs stay valid, and must not be used before :func:`wake`. Of tags that are parked, parks what an earlier call
    has left on the GPU.

    Waits once for all work of the GPU. Other threads allocate and free while it waits.

    Args:
        keep: whether the contents are kept in memory of the host. Otherwise they are lost.
        zero: without ``keep``, whether the memory contains zeroes when it wakes.
        streams: whether to wait only for the streams on which the tensors were made or recorded.

    Raises:
        CachalotError: a graph is being captured, the host does not have the memory for the contents, or another
            thread parks or wakes memory. The memory of the tag is awake then.
    """
    mode = (1 if keep else 3 if zero else 2) | (0x10 if streams else 0)
    index = device_index(device)
    _each(tags, index, lambda number: _library.library().cachalot_park(_handle.require(), index, number, mode))


def wake(*tags: str, device: Device = None) -> None:
    """Brings the memory of the tags back, in their order; of all tags if none is named. The contents are
    there when the call returns.

    Raises:
        OutOfMemoryError: the GPU does not have the memory for a tag, also after all that was cached was released.
            The tags before are awake then. This one and those after are parked, and nothing of them is lost.
    """
    index = device_index(device)
    # Every wake that starts is waited for, whatever fails on the way.
    with contextlib.ExitStack() as started:

        def start(number: int) -> None:
            _library.library().cachalot_wake_start(_handle.require(), index, number)
            started.callback(_library.library().cachalot_wake_wait, _handle.require(), index, number)

        _each(tags, index, start)


def wake_start(*tags: str, device: Device = None) -> None:
    """Starts what :func:`wake` does. :func:`wake_wait` must return before the memory is used."""
    index = device_index(device)
    _each(tags, index, lambda number: _library.library().cachalot_wake_start(_handle.require(), index, number))


def wake_wait(*tags: str, device: Device = None) -> None:
    """Waits until the memory of the tags is back."""
    index = device_index(device)
    _each(tags, index, lambda number: _library.library().cachalot_wake_wait(_handle.require(), index, number))


def parked(tag: str, device: Device = None) -> dict[str, int | str]:
    """Returns where the memory of a tag is: ``state`` (``awake``, ``asleep`` or ``waking``), and in bytes
    ``mapped`` (on the GPU), ``parked``, ``kept`` (parked, with the contents in memory of the host),
    ``pinned`` and ``ordinary`` (which are never parked). ``host`` is the pinned host memory for the contents of
    all tags, and ``idle_host`` the part of it that waits for the next park."""
    index = device_index(device)
    report = _library.ParkReport(struct_size=ctypes.sizeof(_library.ParkReport))
    out = ctypes.byref(report)
    _each((tag,), index, lambda number: _library.library().cachalot_parked(_handle.require(), index, number, out))
    sizes = {name.removesuffix("_bytes"): getattr(report, name) for name, _ in report._fields_[1:8]}
    return {"state": _STATES[report.state], **sizes}


def limit_tag(
    tag: str,
    *,
    max: int | None = None,
    low: int = 0,
    weight: int = 100,
    clear: bool = False,
    device: Device = None,
) -> None:
    """Sets the limits of the memory of a tag, in the words of Linux's control groups. All sizes are in bytes, and of
    what :func:`tag_held` returns as ``charge``. Needs :func:`enable`.

    Args:
        max: the most that the tag may hold. A request beyond it has free memory of the tag given back first, and then
            fails. ``None``: no limit.
        low: memory of the tag that goes back for nobody else. It reserves nothing.
        weight: the share of the tag where memory is short: who holds the most above ``low``, divided by the weight,
            gives free memory back first. Memory without limits has a weight of 100.
        clear: whether other pools never see what was in a page of the tag.

    Raises:
        CachalotError: cachalot is not PyTorch's whole allocator; ``low`` is above ``max``; a number is negative or too
            large.
    """
    require()
    index = device_index(device)
    most = 0xFFFF_FFFF_FFFF_FFFF
    if max is not None and not 0 < max <= most or not 0 <= low <= most or not 0 < weight < 1 << 32:
        raise errors.CachalotError(f"limits of {tag!r}: `max` and `weight` are positive, and `low` is not negative")
    limits = _library.TagLimits(ctypes.sizeof(_library.TagLimits), max or 0, low, weight, int(clear))
    with _lock:
        number = _numbers.setdefault(tag, len(_numbers) + 1)
    _library.library().cachalot_tag_limit(_handle.require(), index, number, ctypes.byref(limits))


def unlimit_tag(tag: str, device: Device = None) -> None:
    """Removes the limits of a tag."""
    with _lock:
        number = _numbers.setdefault(tag, len(_numbers) + 1)
    _library.library().cachalot_tag_limit(_handle.require(), device_index(device), number, None)


def trim_tag(tag: str, keep: int = 0, device: Device = None) -> None:
    """Gives free memory of a tag back to the driver, until the tag holds at most ``keep`` bytes or has no free memory. Its
    pools may be in use; ``low`` does not hold it up.

    Raises:
        CachalotError: no memory has the tag; or a captured graph has memory of it, which stays.
    """
    with _lock:
        number = _numbers.get(tag)
    if number is None:
        raise errors.CachalotError(f"no memory has the tag {tag!r}: use tag() or limit_tag() first")
    _library.library().cachalot_tag_trim(_handle.require(), device_index(device), number, keep)


def tag_held(tag: str, device: Device = None) -> dict[str, int | bool | None]:
    """Returns what the memory of a tag holds, in bytes: ``charge`` (all that it holds of the GPU), of it ``live`` and
    ``cached``, its limits ``max`` (``None``: no limit), ``low``, ``weight`` (0: no limits are set) and ``clear``, and
    so far ``refusals`` (requests that failed because of ``max``) and ``given`` (what went back because of limits).

    Raises:
        CachalotError: no memory has the tag, and it has no limits.
    """
    with _lock:
        number = _numbers.get(tag)
    if number is None:
        raise errors.CachalotError(f"no memory has the tag {tag!r}: use tag() or limit_tag() first")
    report = _library.TagReport(struct_size=ctypes.sizeof(_library.TagReport))
    _library.library().cachalot_tag_held(_handle.require(), device_index(device), number, ctypes.byref(report))
    held = {name.removesuffix("_bytes"): getattr(report, name) for name, _ in report._fields_[1:]}
    return {**held, "max": held["max"] or None, "clear": bool(held["clear"])}


def remaining(device: Device = None) -> dict[str, int]:
    """Returns what is on the GPU, by name and in bytes: once everything was parked, what remains there.
    ``used`` is the memory in use by all processes, the sum of ``block``, ``pending``, ``cached``, ``spare``,
    ``leaked`` and ``other`` (what cachalot does not hold: the context, modules, graphs, other processes).
    ``pinned`` is a part of them, and ``parked`` is addresses without memory."""
    memory = _library.Remaining(struct_size=ctypes.sizeof(_library.Remaining))
    _library.library().cachalot_remaining(_handle.require(), device_index(device), ctypes.byref(memory))
    return {name.removesuffix("_bytes"): getattr(memory, name) for name, _ in memory._fields_[1:]}


def park_elsewhere(*tags: str, on: bool = True, device: Device = None) -> None:
    """Lets requests under the tags, or all tags, be served by the default pool while the tag is parked, instead
    of being refused. Requests of a capture are refused even so."""
    index = device_index(device)
    library = _library.library()
    _each(tags, index, lambda number: library.cachalot_park_elsewhere(_handle.require(), index, number, int(on)))


def park_retain(host_bytes: int, device: Device = None) -> None:
    """Sets how many bytes of pinned host memory stay after a :func:`wake`, for the next :func:`park`: 0 at
    first. Pinning new memory takes some 50 ms for each GiB."""
    _library.library().cachalot_park_retain(_handle.require(), device_index(device), host_bytes)
