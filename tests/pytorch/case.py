"""What PyTorch's own tests ask of its allocator, as far as a plug-in can answer: what the tests beside this share.

    python -m unittest test_memory test_settings test_streams test_graphs test_snapshots

With CACHALOT_TORCH_PLUGIN=1, cachalot is a plug-in. What a plug-in cannot answer is in whole.py. With CACHALOT_TEST=native those tests that need nothing of cachalot run under PyTorch's allocator, to see
that they ask the right thing.
"""

from __future__ import annotations

import gc
import os
import unittest
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import cachalot_gpu.torch

NATIVE = os.environ.get("CACHALOT_TEST") == "native"
if not NATIVE:
    cachalot_gpu.torch.enable("policy:caching", patch=True)

MIB = 1 << 20
only_cachalot = unittest.skipIf(NATIVE, "PyTorch's own allocator")


def stat(key: str) -> int:
    """One of PyTorch's statistics."""
    return torch.cuda.memory_stats()[key]


def block(size: int) -> torch.Tensor:
    """A tensor of so many bytes."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")


@contextmanager
def fraction_of(size: int) -> Iterator[None]:
    """No more than so many bytes may be held."""
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(size / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextmanager
def settings(text: str) -> Iterator[None]:
    """Settings for a while."""
    cachalot_gpu.torch.configure(text)
    try:
        yield
    finally:
        cachalot_gpu.torch.configure("expandable_segments:False,throw_on_cudamalloc_oom:False")


class Case(unittest.TestCase):
    """Each test begins with an empty cache, and ends with statistics that agree with a snapshot."""

    def setUp(self) -> None:
        torch.cuda.init()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def tearDown(self) -> None:
        gc.collect()
        torch.cuda.synchronize()
        self.consistent()

    def consistent(self) -> None:
        """Every current figure, counted again from a snapshot."""
        names = ("allocation", "allocated_bytes", "segment", "reserved_bytes", "active", "active_bytes")
        counted = {f"{name}.{pool}.current": 0 for name in names for pool in ("all", "small_pool", "large_pool")}
        for segment in torch.cuda.memory_snapshot():
            for pool in ("all", f"{segment['segment_type']}_pool"):

                def count(name: str, value: int, pool: str = pool) -> None:
                    counted[f"{name}.{pool}.current"] += value

                count("segment", 0 if segment["is_expandable"] else 1)
                count("reserved_bytes", segment["total_size"])
                self.assertEqual(sum(piece["size"] for piece in segment["blocks"]), segment["total_size"])
                for piece in segment["blocks"]:
                    if piece["state"] == "active_allocated":
                        count("allocation", 1)
                        count("allocated_bytes", piece["size"])
                    if piece["state"].startswith("active"):
                        count("active", 1)
                        count("active_bytes", piece["size"])
        stats = torch.cuda.memory_stats()
        self.assertEqual(counted, {key: stats[key] for key in counted})
