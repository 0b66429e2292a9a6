"""The process's allocator for libraries other than PyTorch: requests, frees, and counts for each
library.

PyTorch allocates from the same allocator after :func:`cachalot_gpu.torch.enable`, so that all
libraries share one cache and one limit.
"""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict, deque
from typing import Any, NamedTuple, Protocol

from . import _handle, _library, _settings, _warning, errors


def start(config: str | None) -> bool:
    """Makes the process's allocator with the settings ``config``, or changes those of the running
    one. ``None`` leaves the settings as they are, or takes those of the environment.

    Returns whether cachalot is to allocate. With ``CACHALOT_DISABLE``, a warning says that the
    libraries keep their own allocators.
    """
    if _settings.disabled():
        _warning.warn(f"the libraries keep their own allocators: {_settings.DISABLE} is set")
        return False
    if config is not None:
        _library.library().cachalot_torch_configure(_settings.encoded(config))
    _handle.require()
    return True


class Usage(NamedTuple):
    """The memory of one library on one device, as requested."""

    bytes: int
    """The bytes of the library's blocks."""
    peak_bytes: int
    """The most bytes so far."""
    blocks: int
    """The number of the library's blocks."""


class _Count:
    """A sum of requests and frees, kept in order.

    A garbage collection may free blocks at any point of a Python function, also while the thread
    holds a lock of this module. A change is therefore only appended, which takes no lock, and added
    up later.
    """

    __slots__ = ("_changes", "_lock", "_usage")

    LONGEST = 4096
    """The most changes before they are added up."""

    def __init__(self) -> None:
        self._changes: deque[int] = deque()
        self._lock = threading.RLock()
        self._usage = Usage(0, 0, 0)

    def add(self, change: int) -> None:
        """Notes the bytes of a request, or of a free as a negative number."""
        self._changes.append(change)
        if len(self._changes) > self.LONGEST:
            self.usage()

    def usage(self) -> Usage:
        """Adds the changes up."""
        with self._lock:
            while self._changes:
                change = self._changes.popleft()
                held, peak, blocks = self._usage
                held += change
                self._usage = Usage(held, max(held, peak), blocks + (1 if change > 0 else -1))
            return self._usage


class Source:
    """The requests of one library. All methods may be called by any thread."""

    def __init__(self) -> None:
        self._counts: defaultdict[int, _Count] = defaultdict(_Count)
        self._library = _library.library()
        self._handle = _handle.require()
        self._malloc, self._free = _library.bare("cachalot_malloc"), _library.bare("cachalot_free")
        self._record_stream = _library.bare("cachalot_record_stream")
        self._told: set[int] = set()
        """Streams that the allocator knows as streams that may end without a report."""

    def malloc(self, size: int, device: int, stream: int) -> int:
        """Allocates a block that ``stream`` may use at once, and returns its address; 0 for 0
        bytes.

        Raises:
            OutOfMemoryError: the device or the limit does not have the memory.
        """
        self._tell(device, stream)
        address = ctypes.c_void_p()
        status = self._malloc(self._handle, device, size, stream, ctypes.byref(address))
        if status:
            _library.raise_failure(self._library, _library.Status(status))
        block = address.value
        if not block:
            return 0
        self._counts[device].add(size)
        return block

    def _tell(self, device: int, stream: int) -> None:
        """Tells the allocator of a stream that its library may destroy: PyTorch, of which it
        expects streams, destroys none."""
        if stream not in self._told:
            status = self._library.cachalot_stream_unreported(self._handle, device, stream)
            if not status:
                self._told.add(stream)

    def free(self, address: int, size: int, device: int, stream: int | None = None) -> None:
        """Frees a block after the work submitted to the block's stream so far. If ``stream`` is
        another one, the block is pending until the work submitted to it so far is done as well.
        Never waits."""
        if not address:
            return
        try:
            status = 0
            if stream is not None:
                self._tell(device, stream)
                status = self._record_stream(self._handle, address, stream)
            status = status or self._free(self._handle, address)
            if status:
                _library.raise_failure(self._library, _library.Status(status))
        except errors.CachalotError as error:
            if error.status != errors.FORKED:
                raise
            # The block is the parent's.
            return
        self._counts[device].add(-size)

    def usage(self) -> dict[int, Usage]:
        """Returns the memory of the library by device."""
        return {device: count.usage() for device, count in sorted(self._counts.copy().items())}


class Counted(Protocol):
    """The requests of one library, which are counted."""

    def usage(self) -> dict[int, Usage]:
        """Returns the memory of the library by device."""


_sources: dict[str, Source] = {}

_counted: dict[str, Counted] = {}
"""Libraries whose requests do not pass through this module, and which are counted elsewhere."""


def source(name: str) -> Source:
    """Returns the requests of a library, which start with the first call."""
    found = _sources.get(name)
    return found if found is not None else _sources.setdefault(name, Source())


def count(name: str, counted: Counted) -> None:
    """Adds a library that counts its requests by itself to :func:`usage`."""
    _counted[name] = counted


def usage() -> dict[str, dict[int, Usage]]:
    """Returns the memory of each library on the shared pool, by name and by number of the device:
    ``usage()["cupy"][0].bytes``. The figures are requested bytes. PyTorch's memory is not among
    them: :func:`cachalot_gpu.torch.memory_stats` has the figures of the whole pool.
    """
    return {name: source.usage() for name, source in sorted((_sources | _counted).items())}


def record_use(memory: Any, stream: Any) -> None:
    """Announces that the work submitted to ``stream`` so far uses ``memory``, so that the memory
    may be freed before the work is done. Needed for work of a stream other than the one under which
    the memory was allocated, unless that stream waits for the work anyway.

    Args:
        memory: an array with ``__cuda_array_interface__``, or an address. A view counts as its
            whole block.
        stream: an object with ``__cuda_stream__`` or with the attribute ``ptr``, or the number of a
            stream.

    Raises:
        CachalotError: no block of cachalot contains the address.
    """
    interface = getattr(memory, "__cuda_array_interface__", None)
    address = interface["data"][0] if interface else int(memory)
    block = _library.Block(struct_size=ctypes.sizeof(_library.Block))
    library, handle = _library.library(), _handle.require()
    library.cachalot_get_block(handle, address, ctypes.byref(block))
    library.cachalot_record_use(handle, block.base, number_of(stream))


def number_of(stream: Any) -> int:
    """Returns the handle of a stream of any library as a number."""
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    return int(getattr(stream, "ptr", stream))
