"""vLLM's sleep mode over cachalot's parking.

    cachalot_gpu.vllm.register("policy:stitched")

before the first use of CUDA in every process of vLLM: in a plug-in of the group
``vllm.general_plugins``, or by ``CACHALOT_VLLM=policy:stitched`` in the environment, which this
package's own plug-in reads. Then weights, caches and captured graphs are in tagged pools of
cachalot, and ``sleep`` and ``wake_up`` park and wake them.

vLLM has a registry of sleep-mode backends since 0.25 (``--sleep-mode-backend cachalot``). Before,
its workers call :class:`CuMemAllocator` themselves. The interfaces are those of 0.11 and 0.33.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import threading
from typing import TYPE_CHECKING, Any

import torch

from . import torch as _own
from .torch import _switch, _tags, _together, _whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

try:
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackend as _Base
except ImportError:
    # vLLM before the registry, or none: the class has all that the registry asks of it.
    _Base = object

__all__ = ["CachalotBackend", "CuMemAllocator", "plugin", "register"]

BACKEND = "cachalot"
"""The name of the backend in vLLM's registry."""

_DEFERRABLE = ("weights", "kv_cache")
"""The tags that can stay parked when others wake."""

_KEPT = ("runtime", "cudagraph")
"""The tags whose contents are kept at every level of sleep."""


_first = threading.Lock()
"""Held while :class:`CuMemAllocator` is made: a second one would know none of the tags of the
first."""


class CuMemAllocator:
    """The interface of vLLM's own class of the same name. All methods may be called by any
    thread."""

    instance: CuMemAllocator | None = None
    default_tag: str = "default"

    @staticmethod
    def get_instance() -> CuMemAllocator:
        """Returns the one of the process."""
        with _first:
            if CuMemAllocator.instance is None:
                CuMemAllocator.instance = CuMemAllocator()
            return CuMemAllocator.instance

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # In the order of their first use, in which they wake.
        self._tags: dict[tuple[str, int], str] = {}

    def _pool(self, tag: str) -> torch.cuda.MemPool:
        """Returns the pool of a tag on the current device."""
        device = torch.cuda.current_device()
        name = f"vllm: {tag}"
        with self._lock:
            pool = _own.Tag(name, device).pool()
            self._tags.setdefault((tag, device), name)
            return pool

    def _parts(self, tags: Iterable[str] | None, kept: tuple[str, ...] = ()) -> list[_together.Part]:
        """Returns the memory of some tags, or of all."""
        found = [(tag, name, device) for (tag, device), name in self._tags.items() if tags is None or tag in tags]
        return [_together.Part(name, tag in kept, device) for tag, name, device in found]

    @contextlib.contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """Puts what this thread allocates on the current device under a tag."""
        pool = self._pool(self.default_tag if tag is None else tag)
        with torch.cuda.use_mem_pool(pool):
            yield

    @contextlib.contextmanager
    def cudagraph_pool(self) -> Iterator[tuple[int, int]]:
        """Provides the pool for captured graphs, whose tag is ``cudagraph``."""
        yield self._pool("cudagraph").id

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """Parks all tags. The contents of ``offload_tags`` are kept, by default those of the
        default tag; the others are lost. A tag that is parked stays as it is.

        Raises:
            CachalotError: the host does not have the memory for the contents, or a graph is being
                captured. All that was awake is awake.
        """
        if offload_tags is None:
            offload_tags = (self.default_tag,)
        elif isinstance(offload_tags, str):
            offload_tags = (offload_tags,)
        with self._lock:
            _together.park(self._parts(None, tuple(offload_tags)))
        gc.collect()
        torch.cuda.empty_cache()

    def discard(self, tags: tuple[str, ...] | str) -> None:
        """Parks the tags without their contents. A tag that is parked stays as it is."""
        with self._lock:
            _together.park(self._parts((tags,) if isinstance(tags, str) else tags))

    def wake_up(self, tags: list[str] | str | None = None) -> None:
        """Wakes the tags, and all others except ``weights`` and ``kv_cache``. Without ``tags``,
        wakes everything.

        Raises:
            OutOfMemoryError: the GPU does not have the memory. A tag without room stays parked,
                with its contents.
        """
        with self._lock:
            known = {tag for tag, _ in self._tags}
            named = [tags] if isinstance(tags, str) else tags
            wanted = None if named is None else {*named, *(known - set(_DEFERRABLE))}
            _together.wake(self._parts(wanted))

    def get_current_usage(self) -> int:
        """Returns the bytes of all tags, also while they are parked."""
        with self._lock:
            parking = [part.tag.parking for part in self._parts(None)]
        return sum(each.mapped_bytes + each.parked_bytes + each.ordinary_bytes for each in parking)

    def release_pools(self) -> None:
        """Does nothing: the pools live as long as the process, and end in good order."""

    def close(self) -> None:
        """Does nothing, as :meth:`release_pools`."""


class CachalotBackend(_Base):
    """The backend for vLLM's registry of sleep modes. What neither sleeps nor wakes with memory
    stays valid: communicators, compiled kernels, addresses."""

    def __init__(self) -> None:
        if _Base is not object:
            super().__init__()
        self._state = "RUNNING"

    def suspend(self, level: int = 1) -> None:
        """Parks everything. Level 1 keeps the contents of the weights, level 2 loses them."""
        if level not in (1, 2):
            raise ValueError(f"vLLM sleeps at level 1 or 2, not {level}")
        CuMemAllocator.get_instance().sleep(offload_tags=("weights", *_KEPT) if level == 1 else _KEPT)
        self._state = "SUSPENDED"

    def resume(self, tags: list[str] | None = None) -> None:
        """Wakes the tags, or everything."""
        before, self._state = self._state, "RESUMING"
        try:
            CuMemAllocator.get_instance().wake_up(tags)
        except BaseException:
            self._state = before
            raise
        self._state = "RUNNING"

    def state(self) -> str:
        """Returns ``RUNNING``, ``SUSPENDED`` or ``RESUMING``."""
        return self._state

    def discard(self, tags: tuple[str, ...]) -> None:
        """Parks the tags without their contents."""
        CuMemAllocator.get_instance().discard(tags)
        self._state = "SUSPENDED"

    @classmethod
    def is_supported(cls) -> bool:
        """Returns whether cachalot is PyTorch's whole allocator in this process."""
        return _whole.in_place()

    @classmethod
    def preserves_communicators(cls) -> bool:
        """True: communicators have no memory under a tag."""
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        """True: the process keeps its kernels."""
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        """False: a communicator may have registered the memory of a graph's buffers, which
        changes."""
        return False

    @classmethod
    def supports_durable_storage(cls) -> bool:
        """False: contents are in memory of the host."""
        return False


def register(config: str | None = None) -> None:
    """Enables cachalot in this process, gives vLLM's workers :class:`CuMemAllocator`, and adds the
    backend ``cachalot`` to vLLM's registry if there is one. A second call changes nothing. With
    ``CACHALOT_DISABLE``, vLLM keeps its own.

    Raises:
        CachalotError: cachalot cannot be PyTorch's whole allocator here.
        ImportError: there is no vLLM with sleep mode.
    """
    if _switch.leave_out_if_disabled():
        return
    theirs: Any = importlib.import_module("vllm.device_allocator.cumem").CuMemAllocator
    if not _own.enabled():
        _own.enable(config)
    _tags.require()
    theirs.get_instance = staticmethod(CuMemAllocator.get_instance)
    try:
        registry: Any = importlib.import_module("vllm.device_allocator.sleep_mode_backend").SleepModeBackendFactory
    except ImportError:
        return
    with contextlib.suppress(ValueError):
        registry.register_backend(BACKEND, __name__, CachalotBackend.__name__)


def plugin() -> None:
    """Calls :func:`register` with the settings of ``CACHALOT_VLLM``; without the variable does
    nothing. vLLM calls this in every process (``vllm.general_plugins``)."""
    if config := os.environ.get("CACHALOT_VLLM"):
        register(config)
