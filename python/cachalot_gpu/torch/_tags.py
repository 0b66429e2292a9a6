"""Tags: names for memory that goes back to the GPU for a while, and that has its own limits."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from .. import _handle, _library, errors
from . import _shim, _whole
from ._installed import device_index, named_index

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ._installed import Device

    State = Literal["awake", "asleep", "waking", "lent"]

_STATES: dict[int, State] = {1: "awake", 2: "asleep", 3: "waking", 4: "lent"}
"""``cachalot_park_state``."""

_UNKNOWN_TAG = 153
"""``CACHALOT_ERROR_UNKNOWN_TAG``."""

_MOST = (1 << 64) - 1

_lock = threading.Lock()
_numbers: dict[str, int] = {}
"""The number of every tag in the library."""
_used: set[tuple[str, int]] = set()
"""Every tag on every device where a pool has it, or had it."""
_members: dict[tuple[str, int], list[tuple[int, int]]] = {}
"""The ids of the pools that got a tag on a device. A pool may be gone, as that of a graph."""
_pools: dict[tuple[str, int], torch.cuda.MemPool] = {}
"""The pool of every tag on every device. A pool lives as long as the process: its tensors may."""
_entered = threading.local()
"""The ``with`` blocks of tags that a thread is in."""


class Held(NamedTuple):
    """What the memory of a tag holds on a device. All sizes are in bytes."""

    charge_bytes: int
    """All that the tag holds of the GPU."""
    live_bytes: int
    """Of it, the bytes of tensors."""
    cached_bytes: int
    """Of it, free memory."""
    max_bytes: int | None
    """The limit that the tag does not exceed. ``None``: no limit."""
    low_bytes: int
    """What goes back for nobody else."""
    refusals: int
    """Requests that failed because of ``max_bytes``, so far."""
    given_bytes: int
    """What went back because of limits, so far."""
    weight: int
    """The share where memory is short. 0: no limits are set."""
    clear: bool
    """Whether other pools never see what was in a page of the tag."""


class Parking(NamedTuple):
    """Where the memory of a tag is on a device. All sizes are in bytes."""

    state: State
    """``"waking"`` is between ``wake(wait=False)`` and the end of the copies, and ``"lent"`` inside of
    ``with lent(tag)``."""
    mapped_bytes: int
    """On the GPU."""
    parked_bytes: int
    """Addresses without memory of the GPU."""
    kept_bytes: int
    """Of the parked bytes, those with contents in memory of the host."""
    pinned_bytes: int
    """On the GPU, and never parked."""
    ordinary_bytes: int
    """In segments without pages, which are never parked either."""
    host_bytes: int
    """Pinned memory of the host for the contents of all tags."""
    idle_host_bytes: int
    """Of it, what waits for the next park."""


class Tag:
    """A name for memory of PyTorch that is parked, woken, limited and counted together.

        weights = Tag("weights")
        with weights:
            model = Model().cuda()
        weights.park()    # the memory is free for others, the tensors stay valid
        weights.wake()    # the contents are back, at the same addresses

    Inside ``with``, the requests of this thread get memory of the tag. Two tags with the same name
    are the same tag. Needs :func:`enable` as PyTorch's whole allocator, and a policy that parks.
    All methods may be called by any thread. None waits for the GPU, except :meth:`park` and
    :meth:`wake`.

    Args:
        name: any text.
        device: the device. ``None`` is the device that is current at each call.
    """

    __slots__ = ("_index", "name")

    name: str
    """The name."""

    def __init__(self, name: str, device: Device = None) -> None:
        self.name = name
        # The current device is not asked for here: that would initialise CUDA.
        self._index = named_index(device)

    def __repr__(self) -> str:
        """Returns the call that makes the tag."""
        return f"Tag({self.name!r})" if self._index is None else f"Tag({self.name!r}, {self._index})"

    def __eq__(self, other: object) -> bool:
        """Returns whether both are one tag: the names and the devices are equal."""
        return isinstance(other, Tag) and (self.name, self._index) == (other.name, other._index)

    def __hash__(self) -> int:
        """Returns a number of the name and the device."""
        return hash((self.name, self._index))

    @property
    def device(self) -> int:
        """The number of the device."""
        return device_index(self._index)

    def pool(self) -> torch.cuda.MemPool:
        """Returns the tag's pool, which is made at the first call. To park the memory of captured
        graphs as well, pass its ``id`` to them as ``pool``.

        Raises:
            UnavailableError: cachalot is not PyTorch's whole allocator.
            CachalotError: the policy parks nothing.
        """
        require()
        index = self.device
        with _lock:
            if (self.name, index) not in _pools:
                with torch.cuda.device(index):
                    pool = torch.cuda.MemPool()
                self._give(pool.id, index)
                _pools[self.name, index] = pool
            return _pools[self.name, index]

    def add_pool(self, pool: torch.cuda.MemPool | tuple[int, int]) -> None:
        """Puts memory that a pool obtains from now on under the tag. Memory that it already has is
        not parked.

        Args:
            pool: a ``torch.cuda.MemPool``, its ``id``, or a ``torch.cuda.graph_pool_handle()`` into
                which a capture has started.

        Raises:
            UnavailableError: cachalot is not PyTorch's whole allocator.
            CachalotError: the policy parks nothing; there is no such pool, or it has its own
                allocator; memory of the pool or of the tag is parked.
        """
        require()
        index = self.device
        with _lock:
            self._give(pool if isinstance(pool, tuple) else pool.id, index)

    def __enter__(self) -> Tag:
        """Routes the requests of this thread into memory of the tag, on the current device."""
        index = self.device
        route = torch.cuda.use_mem_pool(self.pool(), device=index)
        route.__enter__()
        _entered.__dict__.setdefault("routes", []).append(route)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the route of this thread."""
        _entered.routes.pop().__exit__(kind, error, trace)

    def park(self, *, keep: bool = True, zero: bool = False, streams: bool = False) -> None:
        """Gives the memory back to the GPU, as :func:`park` of all tags does."""
        park(self, keep=keep, zero=zero, streams=streams)

    def wake(self, *, wait: bool = True) -> None:
        """Brings the memory back, as :func:`wake` of all tags does."""
        wake(self, wait=wait)

    def members(self) -> list[tuple[int, int]]:
        """Returns the ids of all pools that got the tag on the device."""
        with _lock:
            return list(_members.get((self.name, self.device), []))

    @property
    def parking(self) -> Parking:
        """Where the memory is.

        Raises:
            CachalotError: no memory has the tag on the device.
        """
        report = _library.ParkReport(struct_size=ctypes.sizeof(_library.ParkReport))
        out, library = ctypes.byref(report), _library.library()
        ask = library.cachalot_get_park_report
        _each((self,), None, lambda index, number: ask(_handle.require(), index, _target(number), out))
        values = _library.fields(report)
        return Parking(_STATES[values.pop("state")], **values)

    def set_fallback(self, on: bool = True) -> None:
        """Lets the default pool serve requests under the tag while it is parked (``on``), or
        refuses them, which is the default. Requests of a capture are refused in both cases.

        Raises:
            CachalotError: no memory has the tag on the device.
        """
        is_on, library = int(on), _library.library()
        _each(
            (self,),
            None,
            lambda index, number: library.cachalot_tag_set_fallback(_handle.require(), index, number, is_on),
        )

    def limit(
        self, *, max_bytes: int | None = None, low_bytes: int = 0, weight: int = 100, clear: bool = False
    ) -> None:
        """Sets the limits, with the names of Linux's control groups. They apply to ``charge_bytes``
        of :attr:`held`. Limits may be set before the first request.

        Args:
            max_bytes: the most that the tag may hold. For a request beyond it, free memory of the
                tag goes back first; if that is not enough, the request fails. ``None``: no limit.
            low_bytes: up to this, memory of the tag does not go back for others. It reserves
                nothing.
            weight: the share when memory is short: the tag that holds the most above ``low_bytes``,
                divided by its weight, gives free memory back first. Memory without limits has a
                weight of 100.
            clear: whether other pools never see what was in a page of the tag.

        Raises:
            UnavailableError: cachalot is not PyTorch's whole allocator.
            ConfigurationError: a number is negative or too large.
            CachalotError: ``low_bytes`` is above ``max_bytes``.
        """
        require()
        most = 0 if max_bytes is None else max_bytes
        if max_bytes == 0 or not 0 <= most <= _MOST or not 0 <= low_bytes <= _MOST or not 0 < weight < 1 << 32:
            raise errors.ConfigurationError(
                f"limits of {self.name!r}: `max_bytes` and `weight` are positive, and `low_bytes` is not negative"
            )
        limits = _library.TagLimits(ctypes.sizeof(_library.TagLimits), most, low_bytes, weight, int(clear))
        with _lock:
            number = self._number()
        _library.library().cachalot_tag_set_limits(_handle.require(), self.device, number, ctypes.byref(limits))

    def unlimit(self) -> None:
        """Removes the limits."""
        with _lock:
            number = self._number()
        _library.library().cachalot_tag_set_limits(_handle.require(), self.device, number, None)

    def trim(self, keep_bytes: int = 0) -> None:
        """Gives free memory back to the driver, until the tag holds at most ``keep_bytes`` or has
        no free memory. Its pools may be in use, and ``low_bytes`` does not apply.

        Raises:
            CachalotError: no memory has the tag; or a captured graph has memory of it, which stays.
        """
        number = self._known()
        _library.library().cachalot_tag_trim(_handle.require(), self.device, number, keep_bytes)

    @property
    def held(self) -> Held:
        """What the memory holds, and the limits.

        Raises:
            CachalotError: no memory has the tag, and it has no limits.
        """
        number = self._known()
        report = _library.TagReport(struct_size=ctypes.sizeof(_library.TagReport))
        _library.library().cachalot_get_tag_report(_handle.require(), self.device, number, ctypes.byref(report))
        values = _library.fields(report)
        most, clear = values.pop("max_bytes") or None, bool(values.pop("clear"))
        return Held(**values, max_bytes=most, clear=clear)

    def _number(self) -> int:
        """Returns the number of the tag in the library, under the lock. A new tag gets the next
        one."""
        return _numbers.setdefault(self.name, len(_numbers) + 1)

    def _known(self) -> int:
        """Returns the number of the tag in the library, of a tag that was used or limited."""
        with _lock:
            number = _numbers.get(self.name)
        if number is None:
            raise errors.CachalotError(f"no memory has the tag {self.name!r}: use `with Tag(...)` or limit() first")
        return number

    def _give(self, pool: tuple[int, int], index: int) -> None:
        """Gives the tag to a pool, under the lock."""
        number = self._number()
        _library.library().cachalot_pool_set_tag(_handle.require(), index, _library.Pool(*pool), number)
        _used.add((self.name, index))
        _members.setdefault((self.name, index), []).append(pool)


def require() -> None:
    """Raises an error unless cachalot is PyTorch's whole allocator, which tags need."""
    if not _whole.in_place():
        raise errors.UnavailableError(f"tags need enable(), and PyTorch {_shim.WHOLE_VERSIONS} with a C++ compiler")


def _each(tags: tuple[Tag, ...], device: Device, call: Callable[[int, int], None]) -> None:
    """Calls ``call`` with the device and the number of each tag; of all tags of a device if none is
    named. Of all tags, those are left out whose pools are gone, as that of a captured graph may
    be."""
    wanted = [(tag.name, tag.device) for tag in tags]
    with _lock:
        if not tags:
            index = device_index(device)
            wanted = sorted((at for at in _used if at[1] == index), key=lambda at: _numbers[at[0]])
        for name, index in wanted:
            if (name, index) not in _used:
                raise errors.CachalotError(
                    f"no memory has the tag {name!r} on device {index}: use `with Tag(...)` first"
                )
        numbers = [(index, _numbers[name]) for name, index in wanted]
    for index, number in numbers:
        try:
            call(index, number)
        except errors.CachalotError as error:
            if tags or error.status != _UNKNOWN_TAG:
                raise


def _target(number: int) -> Any:
    """Returns the memory of a tag, for a call of the library."""
    return ctypes.byref(_library.ParkTarget.of_tag(number))


def park(*tags: Tag, keep: bool = True, zero: bool = False, streams: bool = False, device: Device = None) -> None:
    """Gives the memory of the tags back to the GPU; of all tags of ``device`` if none is named.
    Tensors and captured graphs stay valid, but must not be used before :func:`wake`. If a tag is
    already parked, parks what an earlier call has left on the GPU.

    Waits once for all work of the GPU. Other threads can allocate and free during the wait.

    Args:
        tags: tags that have memory.
        keep: whether the contents are kept in memory of the host. Otherwise they are lost.
        zero: without ``keep``, whether the memory contains zeroes when it wakes.
        streams: whether to wait only for the streams on which the tensors were made or recorded.
        device: the device of all tags, by default the current one. Named tags have their own.

    Raises:
        CachalotError: no memory has a tag, a graph is being captured, the host does not have the
            memory for the contents, or another thread parks or wakes memory. The memory of the tag
            is awake then.
    """
    size = ctypes.sizeof(_library.ParkOptions)
    options = ctypes.byref(_library.ParkOptions(size, 0 if keep else 2 if zero else 1, int(streams)))
    call = _library.library().cachalot_park
    _each(tags, device, lambda index, number: call(_handle.require(), index, _target(number), options))


def wake(*tags: Tag, wait: bool = True, device: Device = None) -> None:
    """Brings the memory of the tags back, in their order; of all tags of ``device`` if none is
    named. Tags that are awake stay as they are.

    Args:
        tags: tags that have memory.
        wait: whether the contents are there when the call returns. Otherwise the copies continue,
            and another call, which waits, must return before the memory is used.
        device: the device of all tags, by default the current one. Named tags have their own.

    Raises:
        CachalotError: no memory has a tag.
        OutOfMemoryError: the GPU does not have the memory for a tag, even after all cached memory
            was released. The tags before it are then awake. This tag and those after it are parked,
            and nothing of them is lost.
    """
    # Every wake that starts is waited for, whatever fails on the way.
    with contextlib.ExitStack() as started:

        def start(index: int, number: int) -> None:
            _library.library().cachalot_wake_start(_handle.require(), index, _target(number))
            if wait:
                started.callback(_library.library().cachalot_wake_wait, _handle.require(), index, _target(number))

        _each(tags, device, start)


def retain_host_memory(most_bytes: int, device: Device = None) -> None:
    """Sets how many bytes of pinned host memory stay after a :func:`wake`, for the next
    :func:`park`: 0 at first. Pinning new memory takes some 50 ms for each GiB. Releases what
    exceeds the number."""
    _library.library().cachalot_retain_host_memory(_handle.require(), device_index(device), most_bytes)
