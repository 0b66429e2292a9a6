"""Pools of captured graphs that lend their free memory between replays."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import torch

from .. import _handle, _library, errors
from . import _tags

if TYPE_CHECKING:
    from collections.abc import Iterator

    Lender = Union["torch.cuda.CUDAGraph", "torch.cuda.MemPool", "_tags.Tag", tuple[int, int]]

_CAPTURING = 340
"""``CACHALOT_ERROR_CAPTURING``."""
_UNKNOWN_POOL = 152
"""``CACHALOT_ERROR_UNKNOWN_POOL``."""


class _Place(NamedTuple):
    """A pool of a device."""

    device: int
    pool: tuple[int, int]


_lock = threading.Lock()
_held: dict[_Place, int] = {}
"""The pools that ``with`` blocks lend, and how many do."""
_graphs: weakref.WeakKeyDictionary[Any, tuple[int, bool]] = weakref.WeakKeyDictionary()
"""For each graph captured since the functions of graphs were replaced: its device, and whether its
pool is its own. Another graph may use memory of a shared pool in ways that no allocator sees."""
_automatic = threading.Event()
"""Set while every replay lends the graph's own pool afterwards."""


def _place(lender: torch.cuda.CUDAGraph | torch.cuda.MemPool | tuple[int, int]) -> _Place:
    """Returns the pool of a graph, a ``MemPool`` or an id."""
    if isinstance(lender, torch.cuda.CUDAGraph):
        device, _ = _graphs.get(lender, (torch.cuda.current_device(), False))
        return _Place(device, tuple(lender.pool()))
    return _Place(torch.cuda.current_device(), lender if isinstance(lender, tuple) else tuple(lender.id))


def _places(lender: Lender) -> list[_Place]:
    """Returns the pools of what lends."""
    if isinstance(lender, _tags.Tag):
        return [_Place(lender.device, pool) for pool in lender.members()]
    return [_place(lender)]


def _lend(place: _Place) -> None:
    """Lends the memory of a pool."""
    _library.library().cachalot_pool_lend(_handle.require(), place.device, _library.Pool(*place.pool))


def _reclaim(place: _Place) -> None:
    """Brings the memory of a pool back, for work of the current stream."""
    stream = torch.cuda.current_stream(place.device).cuda_stream
    _library.library().cachalot_pool_reclaim(_handle.require(), place.device, _library.Pool(*place.pool), stream)


@contextlib.contextmanager
def lent(*lenders: Lender) -> Iterator[None]:
    """Lends the memory of free blocks in pools to everything else, inside of ``with``.

        graph.replay()
        with lent(graph):
            sample(logits)    # may use the memory that the graph needs only while it runs
        graph.replay()

    Addresses stay, and so do tensors that are alive, with their contents. A replay of a graph with
    memory of the pools, and a request in them, raise an error inside. Takes no time if nobody needs
    the memory. A pool must be on pages: enable ``expandable_segments:True`` or ``policy:stitched``,
    or use a :class:`Tag`.

    Args:
        lenders: captured graphs, a ``torch.cuda.MemPool``, its ``id``, a graph's ``pool()``, or a
            :class:`Tag` with all of its pools.

    Raises:
        UnavailableError: cachalot is not PyTorch's whole allocator.
        CachalotError: a graph is being captured, the pool has ordinary segments or is parked.
        OutOfMemoryError: at the end, the GPU does not have the memory. It stays lent until
            a replay, or the end of another ``with``, brings it back.
    """
    _tags.require()
    _replace()
    with contextlib.ExitStack() as loans:
        for place in [place for lender in lenders for place in _places(lender)]:
            loans.enter_context(_hold(place))
        yield


@contextlib.contextmanager
def _hold(place: _Place) -> Iterator[None]:
    """Lends a pool, unless another ``with`` block does."""
    with _lock:
        if place not in _held:
            _lend(place)
        _held[place] = _held.get(place, 0) + 1
    try:
        yield
    finally:
        with _lock:
            _held[place] -= 1
            if _held[place] == 0:
                del _held[place]
                _reclaim(place)


def lend_graphs(on: bool = True) -> None:
    """Lends the memory of captured graphs between their replays: every ``CUDAGraph.replay`` brings
    the memory of its graph back first, and lends it afterwards.

    Only graphs that were captured after the first call, without the argument ``pool``, lend memory.
    Graphs that share a pool may leave results in it that no allocator knows of, as those of
    ``torch.compile`` do: use :class:`lent` for them.

    A replay takes longer if others have taken memory of the graph in between.

    Args:
        on: whether replays lend from now on. Memory that is lent comes back at the next replay.

    Raises:
        UnavailableError: cachalot is not PyTorch's whole allocator.
    """
    _tags.require()
    _replace()
    if on:
        _automatic.set()
    else:
        _automatic.clear()


def _replace() -> None:
    """Puts the functions of graphs that know of loans in the place of PyTorch's, once."""
    kind = torch.cuda.CUDAGraph
    with _lock:
        if getattr(kind.replay, "cachalot", False):
            return
        replay, capture_begin = kind.replay, kind.capture_begin

        def begin(self: Any, pool: Any = None, *more: Any, **named: Any) -> None:
            """Begins a capture, with the memory of the pool that it names."""
            shared = pool is not None and tuple(pool) != (0, 0)
            if shared:
                _bring_back(_Place(torch.cuda.current_device(), tuple(pool)), "a capture into")
            capture_begin(self, *(() if pool is None else (pool,)), *more, **named)
            _graphs[self] = (torch.cuda.current_device(), not shared)

        def run(self: Any) -> None:
            """Runs the graph with its memory, and lends the memory afterwards."""
            place = _place(self)
            _bring_back(place, "a replay with memory of")
            replay(self)
            if _automatic.is_set() and _graphs.get(self, (0, False))[1]:
                try:
                    _lend(place)
                except errors.CachalotError as error:
                    # Another stream captures: the memory is lent after the next replay.
                    if error.status != _CAPTURING:
                        raise

        run.cachalot = True  # type: ignore[attr-defined]
        kind.capture_begin, kind.replay = begin, run


def _bring_back(place: _Place, what: str) -> None:
    """Brings the memory of a pool back for ``what``, unless a ``with`` block lends it.

    Raises:
        CachalotError: it does.
    """
    with _lock:
        if place in _held:
            raise errors.CachalotError(
                f"{what} the pool {place.pool} inside of `with lent(...)`, which has lent the memory to others"
            )
    try:
        _reclaim(place)
    except errors.CachalotError as error:
        # A new pool has no memory yet.
        if error.status != _UNKNOWN_POOL:
            raise
