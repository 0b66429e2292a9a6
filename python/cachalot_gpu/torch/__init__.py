"""cachalot under PyTorch.

These two lines replace PyTorch's CUDA allocator, before the first use of CUDA:

    import cachalot_gpu.torch
    cachalot_gpu.torch.enable("policy:caching,expandable_segments:True")

With ``enable(pinned=True)``, cachalot also allocates pinned memory of the host.

With :class:`MemPool`, PyTorch keeps its allocator, and one pool takes its segments from cachalot.

The functions for statistics, limits and snapshots have the names, arguments and results of those in
``torch.cuda`` and ``torch.cuda.memory``, which work as well where cachalot is PyTorch's whole
allocator (PyTorch 2.6 to 2.15).
"""

from .. import _adapter

with _adapter.importing("torch", "PyTorch with CUDA", "'./python[torch]' in a clone of cachalot"):
    import torch as _torch  # noqa: F401

from ._explain import explain
from ._forecast import predict
from ._history import dump_snapshot, memory_snapshot, record_memory_history
from ._limits import (
    empty_cache,
    get_per_process_memory_fraction,
    remaining_memory,
    set_per_process_memory_fraction,
)
from ._plugin import configure, enable, enabled
from ._holds import hold_frees
from ._loans import lend_graphs, lent
from ._pool import MemPool
from ._ranges import ElasticTensor
from ._spill import advise, spilled
from ._statistics import (
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    metrics,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    statistics,
)
from ._streams import record_use
from ._tags import Tag, park, retain_host_memory, wake
from ._upkeep import end_iteration, maintain, maintain_every, tuning

__all__ = [
    "ElasticTensor",
    "MemPool",
    "Tag",
    "advise",
    "configure",
    "dump_snapshot",
    "empty_cache",
    "enable",
    "enabled",
    "end_iteration",
    "explain",
    "get_per_process_memory_fraction",
    "hold_frees",
    "lend_graphs",
    "lent",
    "maintain",
    "maintain_every",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "metrics",
    "park",
    "predict",
    "record_memory_history",
    "record_use",
    "remaining_memory",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "retain_host_memory",
    "set_per_process_memory_fraction",
    "spilled",
    "statistics",
    "tuning",
    "wake",
]
