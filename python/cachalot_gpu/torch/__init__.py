"""cachalot under PyTorch.

These two lines replace PyTorch's CUDA allocator, before the first use of CUDA:

    import cachalot_gpu.torch
    cachalot_gpu.torch.enable("policy:caching,expandable_segments:True")

With :func:`enable_pinned`, cachalot also allocates pinned memory of the host.

With :func:`pool`, PyTorch keeps its allocator, and one ``torch.cuda.MemPool`` takes its segments
from cachalot.

The functions for statistics, limits and snapshots have the names, arguments and results of those in
``torch.cuda``, which work as well where cachalot is PyTorch's whole allocator (PyTorch 2.6 to
2.15).
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "cachalot_gpu.torch needs PyTorch with CUDA: pip install './python[torch]' in a clone of cachalot", name="torch"
    ) from None

from ._explain import explain
from ._forecast import predict
from ._history import dump_snapshot, memory_snapshot, record_memory_history
from ._limits import (
    empty_cache,
    get_per_process_memory_fraction,
    list_gpu_processes,
    mem_get_info,
    set_per_process_memory_fraction,
)
from ._pages import maintain, maintain_every, page_stats, reclaim_stats
from ._parking import (
    limit_tag,
    park,
    park_elsewhere,
    park_retain,
    parked,
    remaining,
    tag,
    tag_held,
    tag_pool,
    tagged_pool,
    trim_tag,
    unlimit_tag,
    wake,
    wake_start,
    wake_wait,
)
from ._pinned import enable_pinned, pinned_enabled
from ._plugin import configure, enable, enabled
from ._pool import pool
from ._ranges import ElasticTensor, range
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
from ._tuning import iteration, tuned

__all__ = [
    "ElasticTensor",
    "configure",
    "dump_snapshot",
    "empty_cache",
    "enable",
    "enable_pinned",
    "enabled",
    "explain",
    "get_per_process_memory_fraction",
    "iteration",
    "limit_tag",
    "list_gpu_processes",
    "maintain",
    "maintain_every",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "metrics",
    "page_stats",
    "park",
    "park_elsewhere",
    "park_retain",
    "parked",
    "pinned_enabled",
    "pool",
    "predict",
    "range",
    "reclaim_stats",
    "record_memory_history",
    "record_use",
    "remaining",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "statistics",
    "tag",
    "tag_held",
    "tag_pool",
    "tagged_pool",
    "trim_tag",
    "tuned",
    "unlimit_tag",
    "wake",
    "wake_start",
    "wake_wait",
]
