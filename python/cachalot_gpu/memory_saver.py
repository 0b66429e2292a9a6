"""The interface of torch_memory_saver (0.0.10), over cachalot's parking.

    from cachalot_gpu.memory_saver import torch_memory_saver

    with torch_memory_saver.region("weights", enable_cpu_backup=True):
        model = Model().cuda()
    torch_memory_saver.pause("weights")
    torch_memory_saver.resume("weights")

The first region enables cachalot, unless :func:`cachalot_gpu.torch.enable` was called before. No
library is preloaded. Captured graphs work in every mode, and so do expandable segments. A program
that imports the other package takes this module with ``sys.modules["torch_memory_saver"] =
cachalot_gpu.memory_saver`` before.

Mistakes for which torch_memory_saver ends the process do no harm here: a pause of memory that is
already paused, and a resume of memory that is not, do nothing. A request under a paused tag raises
an error.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

# First: its error says what to install where PyTorch is missing.
from . import torch as _own  # isort: skip

import torch

from . import errors
from .torch import _switch, _together

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TorchMemorySaver", "configure_subprocess", "torch_memory_saver"]

_MODES = ("preload", "torch")
_BACKENDS = ("mmap", "pinned")
_ALL_OF_HOST = (1 << 63) - 1


def _is_set(variable: str) -> bool:
    """Returns whether a variable of the environment says yes."""
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on")


def _checked(enable_cpu_backup: bool, cpu_backup_backend: str | None) -> bool:
    """Returns whether contents are kept, after a look at the two arguments.

    Both backends are the same here: contents go to pinned memory, which a resume gives back to the
    system.
    """
    if cpu_backup_backend is not None and not enable_cpu_backup:
        raise ValueError("cpu_backup_backend needs enable_cpu_backup=True")
    if cpu_backup_backend not in (None, *_BACKENDS):
        raise ValueError(f"cpu_backup_backend is one of {_BACKENDS}, not {cpu_backup_backend!r}")
    return bool(enable_cpu_backup)


class TorchMemorySaver:
    """Regions with memory that goes back to the GPU for a while. All methods may be called by any
    thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._parts: dict[str, set[_together.Part]] = {}
        self._graph_pools: dict[tuple[tuple[int, int], int], tuple[str, _together.Part]] = {}
        self._within = threading.local()
        self._mode = "torch"
        self._retains = _is_set("TMS_RETAIN_CPU_BACKUP")

    def _part(self, tag: str, kept: bool) -> _together.Part:
        """Returns the memory of a tag on the current device, whose pool is made at the first
        call."""
        if _is_set("TMS_INIT_ENABLE"):
            raise NotImplementedError(
                "TMS_INIT_ENABLE puts a region around the whole process, which cachalot does not offer: use region()"
            )
        if not _own.enabled():
            _own.enable()
        name = f"memory_saver: {tag} ({'kept' if kept else 'dropped'})"
        part = _together.Part(name, kept, torch.cuda.current_device())
        with self._lock:
            part.tag.pool()
            if part not in self._parts.setdefault(tag, set()):
                self._parts[tag].add(part)
                self._retain()
        return part

    def _retain(self) -> None:
        """Sets what the host keeps for the next pause, on every device with a region."""
        for device in {part.device for part in self._chosen(None)}:
            _own.retain_host_memory(_ALL_OF_HOST if self._retains else 0, device)

    @contextlib.contextmanager
    def region(
        self,
        tag: str = "default",
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """Puts what this thread allocates on the current device under a tag. In nested regions, the
        inner one counts. A graph that is captured in a region keeps its own memory: see
        :meth:`cuda_graph`.

        Args:
            tag: the name for :meth:`pause` and :meth:`resume`.
            enable_cpu_backup: whether contents are kept in memory of the host during a pause. A tag
                may have memory of either kind.
            enable_disk_backup: not offered.
            cpu_backup_backend: ``"pinned"`` or ``"mmap"``, without a difference here.

        Raises:
            CachalotError: cachalot is not PyTorch's whole allocator, or the stream captures a
                graph.
            NotImplementedError: contents are to be kept on a disk.
        """
        kept = _checked(enable_cpu_backup, cpu_backup_backend)
        if _switch.disabled():
            yield
            return
        if enable_disk_backup:
            raise NotImplementedError("cachalot keeps contents in memory of the host, and not on a disk")
        part = self._part(tag, kept)
        if torch.cuda.is_current_stream_capturing():
            raise errors.CachalotError("no region starts while the stream captures a graph: use cuda_graph()")
        depth = getattr(self._within, "depth", 0)
        with part.tag:
            self._within.depth = depth + 1
            try:
                yield
            finally:
                self._within.depth = depth

    @contextlib.contextmanager
    def cuda_graph(
        self,
        cuda_graph: torch.cuda.CUDAGraph,
        pool: Any = None,
        stream: torch.cuda.Stream | None = None,
        capture_error_mode: str = "global",
        tag: str = "default",
        enable_cpu_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """Captures a graph as ``torch.cuda.graph`` does, with the graph's memory under a tag.

        Args:
            cuda_graph: the new graph.
            pool: the pool of another graph, or a handle. Without one, the graph has its own pool.
            stream: the stream that captures.
            capture_error_mode: as for ``torch.cuda.graph``.
            tag: the name for :meth:`pause` and :meth:`resume`.
            enable_cpu_backup: whether the contents are kept during a pause. A replay writes them
                anew.
            cpu_backup_backend: as for :meth:`region`.

        Raises:
            CachalotError: the tag is paused, or the pool has another tag.
        """
        kept = _checked(enable_cpu_backup, cpu_backup_backend)
        if _switch.disabled():
            with torch.cuda.graph(cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode):
                yield
            return
        part = self._part(tag, kept)
        handle = torch.cuda.graph_pool_handle() if pool is None else getattr(pool, "id", pool)
        with self._lock:
            other, of_pool = self._graph_pools.get((handle, part.device), (tag, part))
            if of_pool != part:
                raise errors.CachalotError(f"the pool of the graph has the tag {other!r} already: a pool has one")
            if not part.is_awake():
                raise errors.CachalotError(f"the tag {tag!r} is paused: resume it before a graph is captured under it")
            self._graph_pools[handle, part.device] = (tag, part)
        with torch.cuda.graph(cuda_graph, pool=handle, stream=stream, capture_error_mode=capture_error_mode):
            # The capture has made the pool, which has no memory yet.
            part.tag.add_pool(handle)
            yield

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """Ends the effect of the thread's regions inside ``with``. Outside of all regions this does
        nothing."""
        depth = getattr(self._within, "depth", 0)
        if depth == 0:
            yield
            return
        self._within.depth = 0
        try:
            # Gone with its cached memory at the end. Tensors may live longer.
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                yield
            del pool
        finally:
            self._within.depth = depth

    def _chosen(self, tag: str | None) -> list[_together.Part]:
        """Returns the memory of a tag, or of all tags, on every device. Contents that are kept come
        first."""
        parts = [part for name, parts in self._parts.items() if not tag or name == tag for part in parts]
        return sorted(parts, key=lambda part: (not part.keep, part))

    def pause(self, tag: str | None = None) -> None:
        """Gives the memory of a tag back to the GPU, on every device; of all tags without one.
        Waits for the work of the GPU. A tag without memory, and memory that is paused, are left as
        they are.

        Raises:
            CachalotError: a graph is being captured, or the host does not have the memory for the
                contents. Nothing is paused then that was not before.
        """
        with self._lock:
            _together.park(self._chosen(tag))

    def resume(self, tag: str | None = None) -> None:
        """Brings the memory of a tag back, on every device; of all tags without one. Memory that is
        not paused is left as it is.

        Raises:
            OutOfMemoryError: a GPU does not have the memory. The memory without room stays paused,
                with its contents, and a later call resumes it.
        """
        with self._lock:
            _together.wake(self._chosen(tag))

    @property
    def enabled(self) -> bool:
        """Returns whether regions have an effect: not with ``CACHALOT_DISABLE``. A region that
        cannot work raises an error."""
        return not _switch.disabled()

    @property
    def hook_mode(self) -> str:
        """The mode that was asked for: ``"preload"`` or ``"torch"``. Both work alike here, at any
        time."""
        return self._mode

    @hook_mode.setter
    def hook_mode(self, hook_mode: str) -> None:
        """Accepts either mode."""
        if hook_mode not in _MODES:
            raise ValueError(f"hook_mode is one of {_MODES}, not {hook_mode!r}")
        self._mode = hook_mode

    @property
    def memory_margin_bytes(self) -> int:
        """Not offered, except 0."""
        raise NotImplementedError("memory_margin_bytes can only be set")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        """Accepts 0."""
        if value:
            raise NotImplementedError(
                "cachalot leaves no margin of the GPU's memory free: torch.cuda.set_per_process_memory_fraction() sets "
                "what the process may hold"
            )

    @property
    def retain_cpu_backup(self) -> bool:
        """Whether the memory of the host stays after a resume, for the next pause. The contents do
        not stay."""
        return self._retains

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        """Takes effect at once: without, the memory of the host that is idle goes back."""
        with self._lock:
            self._retains = bool(value)
            self._retain()

    def get_cpu_backup(self, x: torch.Tensor, zero_copy: bool = False) -> None:
        """Returns ``None``, as there is no backup of memory that is not paused.

        Raises:
            NotImplementedError: memory of the tensor's device is paused. Its contents cannot be
                read before a resume.
        """
        if not x.is_cuda or not x.is_contiguous():
            raise ValueError("get_cpu_backup needs a contiguous tensor on a GPU")
        with self._lock:
            paused = any(part.device == x.device.index and not part.is_awake() for part in self._chosen(None))
        if paused:
            raise NotImplementedError("cachalot does not show the contents of paused memory: resume it first")

    def set_disk_backup_dir(self, path: str) -> None:
        """Not offered."""
        raise NotImplementedError("cachalot keeps contents in memory of the host, and not on a disk")


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Does nothing: processes that are started inside need no preloaded library, and enable
    cachalot themselves."""
    yield


torch_memory_saver = TorchMemorySaver()
"""The one that programs use."""
