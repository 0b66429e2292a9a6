"""A library that parks memory in name only, and PyTorch's pools and captures for the stand-in.

The library keeps a tag for every pool and a state for every tag, and refuses what the real one
refuses. Of the routes of a thread the latest takes a request, as in the real one.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Iterator
from typing import Any

import torch  # the stand-in

from cachalot_gpu import _library, errors
from cachalot_gpu.torch import _plugin, _spill, _tags, _whole

MIB = 1 << 20
KEEP, DROP, ZERO = 0, 1, 2
Pool = tuple


class Library:
    """The functions of the library that parking calls."""

    def __init__(self) -> None:
        self.tags: dict[tuple[int, Pool], int] = {}
        self.asleep: dict[tuple[int, int], int] = {}
        """The mode of every tag that is parked, on its device."""
        self.waking: set[tuple[int, int]] = set()
        self.retained: dict[int, int] = {}
        self.limits: dict[tuple[int, int], _library.TagLimits] = {}
        """The limits of every tag that has some, on its device."""
        self.trimmed: list[tuple[int, int]] = []
        self.spilled: list[tuple[int, Pool]] = []
        """The pools whose memory lies on the host."""
        self.has_spill = True
        self.fallbacks: list[tuple[int, int, int]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.failures: dict[tuple[str, int], errors.CachalotError] = {}
        """By function and number of a tag."""

    def _note(self, function: str, device: int, number: int, *more: int) -> tuple[int, int]:
        self.calls.append((function, device, number, *more))
        if (function, number) in self.failures:
            raise self.failures[function, number]
        if number not in [tag for (at, _), tag in self.tags.items() if at == device]:
            raise errors.CachalotError("no pool has the tag", 153)
        return device, number

    def cachalot_torch_allocator(self, handle: Any) -> None:
        handle._obj.value = 1

    def cachalot_pool_set_tag(self, handle: Any, device: int, pool: _library.Pool, number: int) -> None:
        name = (pool.first, pool.second)
        if name not in State.pools:
            raise errors.CachalotError("there is no such pool", 152)
        if (device, number) in self.asleep:
            raise errors.CachalotError("the memory is parked", 180)
        self.tags[device, name] = number

    def cachalot_pool_spill(self, handle: Any, device: int, pool: _library.Pool, on: int) -> None:
        if on and not self.has_spill:
            raise errors.CachalotError("`spill` is not set", 330)
        self.spilled.append((device, (pool.first, pool.second)))

    def cachalot_park(self, handle: Any, device: int, target: Any, options: Any) -> None:
        mode = options._obj.mode
        at = self._note("park", device, target._obj.tag, mode, options._obj.order)
        if State.capturing:
            raise errors.CachalotError("not permitted in a capture", 250)
        self.asleep.setdefault(at, mode)

    def cachalot_wake_start(self, handle: Any, device: int, target: Any) -> None:
        at = self._note("wake_start", device, target._obj.tag)
        if at in self.asleep:
            self.waking.add(at)

    def cachalot_wake_wait(self, handle: Any, device: int, target: Any) -> None:
        at = self._note("wake_wait", device, target._obj.tag)
        self.waking.discard(at)
        self.asleep.pop(at, None)

    def cachalot_get_park_report(self, handle: Any, device: int, target: Any, report: Any) -> None:
        number = target._obj.tag
        at = device, number
        if number not in [tag for (where, _), tag in self.tags.items() if where == device]:
            raise errors.CachalotError("no pool has the tag", 153)
        bytes_ = sum(State.pools[pool] for (where, pool), tag in self.tags.items() if (where, tag) == at)
        out = report._obj
        out.state = 3 if at in self.waking else 2 if at in self.asleep else 1
        out.parked_bytes, out.mapped_bytes = (bytes_, 0) if at in self.asleep else (0, bytes_)
        out.kept_bytes = bytes_ if self.asleep.get(at) == KEEP else 0

    def cachalot_tag_set_limits(self, handle: Any, device: int, number: int, limits: Any) -> None:
        if limits is None:
            self.limits.pop((device, number), None)
            return
        given = limits._obj
        if given.low_bytes > given.max_bytes > 0:
            raise errors.CachalotError("`low` is above `max`", 172)
        self.limits[device, number] = given

    def cachalot_tag_trim(self, handle: Any, device: int, number: int, keep: int) -> None:
        self.trimmed.append((number, keep))

    def cachalot_get_tag_report(self, handle: Any, device: int, number: int, report: Any) -> None:
        limits = self.limits.get((device, number))
        if limits is None and number not in [tag for (where, _), tag in self.tags.items() if where == device]:
            raise errors.CachalotError("no pool has the tag", 153)
        bytes_ = sum(State.pools[pool] for (_, pool), tag in self.tags.items() if tag == number)
        out = report._obj
        out.charge_bytes = out.live_bytes = bytes_
        for name in ("max_bytes", "low_bytes", "weight", "clear") if limits else ():
            setattr(out, name, getattr(limits, name))

    def cachalot_tag_set_fallback(self, handle: Any, device: int, number: int, on: int) -> None:
        self.fallbacks.append((device, number, on))

    def cachalot_retain_host_memory(self, handle: Any, device: int, bytes_: int) -> None:
        self.retained[device] = bytes_

    def modes(self) -> dict[str, int]:
        """The mode of every tag that is parked on some device, by its name."""
        names = {number: name for name, number in _tags._numbers.items()}
        return {names[number]: mode for (_, number), mode in self.asleep.items()}

    def tag_of(self, pool: Pool | None, device: int = 0) -> str | None:
        """The name of a pool's tag."""
        names = {number: name for name, number in _tags._numbers.items()}
        return None if pool is None else names.get(self.tags.get((device, pool), 0))


class State:
    """What PyTorch knows."""

    pools: dict[Pool, int]
    """Every pool, and its bytes."""
    routes: threading.local
    capturing: bool
    device: int
    handles = 1000


class MemPool:
    """``torch.cuda.MemPool``."""

    def __init__(self) -> None:
        self.id = (0, len(State.pools) + 1)
        State.pools[self.id] = 0


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    """``torch.cuda.use_mem_pool``."""
    routes = State.routes.__dict__.setdefault("all", [])
    routes.append(pool.id)
    try:
        yield
    finally:
        routes.pop()


def graph_pool_handle() -> Pool:
    """``torch.cuda.graph_pool_handle``: a pool exists from its first capture on."""
    State.handles += 1
    return (State.handles, 0)


@contextlib.contextmanager
def graph(cuda_graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "global") -> Iterator[None]:
    """``torch.cuda.graph``."""
    cuda_graph.update(pool=pool, stream=stream, mode=capture_error_mode)
    State.pools.setdefault(pool, 0)
    routes = State.routes.__dict__.setdefault("all", [])
    routes.append(pool)
    State.capturing = True
    try:
        yield
    finally:
        State.capturing = False
        routes.pop()


@contextlib.contextmanager
def device(index: int) -> Iterator[None]:
    """``torch.cuda.device``."""
    before, State.device = State.device, index
    try:
        yield
    finally:
        State.device = before


def request(library: Library, bytes_: int = MIB) -> str | None:
    """Makes a request, and returns the tag that it was led to."""
    routes = State.routes.__dict__.get("all", [])
    if not routes:
        return None
    number = library.tags.get((State.device, routes[-1]), 0)
    if (State.device, number) in library.asleep:
        raise RuntimeError("the memory is parked: wake it before it is used")
    State.pools[routes[-1]] += bytes_
    return library.tag_of(routes[-1], State.device)


def install() -> Library:
    """Puts the library in the place of the real one, with no tags."""
    library = Library()
    _tags._numbers.clear()
    _tags._used.clear()
    _tags._pools.clear()
    _spill._pools.clear()
    _tags._members.clear()
    State.pools, State.routes, State.device, State.capturing = {}, threading.local(), 0, False
    _library.library = lambda: library  # type: ignore[assignment,return-value]
    _whole.in_place = lambda: True
    _plugin._whole.in_place = lambda: True
    names = types.SimpleNamespace(
        MemPool=MemPool,
        use_mem_pool=use_mem_pool,
        graph=graph,
        graph_pool_handle=graph_pool_handle,
        device=device,
        current_device=lambda: State.device,
        is_current_stream_capturing=lambda: State.capturing,
        empty_cache=lambda: library.calls.append(("empty_cache",)),
    )
    for name, value in vars(names).items():
        setattr(torch.cuda, name, value)
    return library
