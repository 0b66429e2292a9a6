"""Captured graphs that lend their free memory between replays. The graphs only copy, so no kernel runs.

    python test_loans.py [CONFIG...]

Each configuration is a process of its own, by default the two of ``CONFIGS``.
"""

from __future__ import annotations

import gc
import unittest
from typing import NamedTuple

import torch

import cachalot_gpu
import cachalot_gpu.torch as cachalot
from cachalot_gpu.torch import Tag, lend_graphs, lent
from each import CONFIG, run, used

MIB = 1 << 20
CONFIGS = ("policy:caching,expandable_segments:True", "policy:stitched")
if CONFIG:
    cachalot.enable(CONFIG)


def block(mib: int) -> torch.Tensor:
    """A tensor of so many MiB."""
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


class Copies(NamedTuple):
    """A graph that copies its input to its output, through memory that is free between replays."""

    graph: torch.cuda.CUDAGraph
    source: torch.Tensor
    result: torch.Tensor

    def check(self, number: int) -> bool:
        """Replays the graph, and returns whether the result is the input."""
        self.source.copy_(torch.full_like(self.source, number, device="cpu"))
        self.graph.replay()
        return bool((self.result.cpu() == number).all())


def capture(mib: int = 64, pool: tuple[int, int] | None = None) -> Copies:
    """Captures a graph with two blocks of so many MiB between its input and its output."""
    source = block(2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        first, second = block(mib), block(mib)
        first[: 2 * MIB].copy_(source)
        second[: 2 * MIB].copy_(first[: 2 * MIB])
        result = block(2)
        result.copy_(second[: 2 * MIB])
        del first, second
    return Copies(graph, source, result)


class Loans(unittest.TestCase):
    """Each test captures graphs of its own."""

    def setUp(self) -> None:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def tearDown(self) -> None:
        lend_graphs(False)
        self.setUp()

    def test_others_use_the_memory_inside_of_the_block(self) -> None:
        copies = capture()
        self.assertTrue(copies.check(1))
        before = used()
        for number in range(2, 6):
            with lent(copies.graph):
                other = block(120)
                self.assertLess(used(), before + 24 * MIB)
                del other
            self.assertTrue(copies.check(number))
            self.assertLess(used(), before + 24 * MIB, "what others took has come back")

    def test_a_replay_inside_of_the_block_is_refused(self) -> None:
        copies = capture()
        with lent(copies.graph), lent(copies.graph.pool()):
            with self.assertRaisesRegex(cachalot_gpu.CachalotError, "a replay with memory of the pool"):
                copies.graph.replay()
            with self.assertRaisesRegex(cachalot_gpu.CachalotError, "a capture into the pool"):
                capture(pool=copies.graph.pool())
        self.assertTrue(copies.check(3))

    def test_eight_graphs_hold_the_memory_of_one(self) -> None:
        lend_graphs()
        graphs = []
        for number in range(8):
            graphs.append(capture())
            self.assertTrue(graphs[-1].check(number))
        torch.cuda.empty_cache()
        before = used()
        for number in range(24):
            self.assertTrue(graphs[number * 5 % 8].check(number))
            other = block(64)
            del other
        self.assertLess(used() - before, 2 * 128 * MIB)

    def test_graphs_that_share_a_pool_keep_its_memory(self) -> None:
        lend_graphs()
        first = capture()
        second = capture(pool=first.graph.pool())
        third = capture(pool=torch.cuda.graph_pool_handle())
        self.assertTrue(first.check(1))
        self.assertTrue(second.check(2), "a replay brings the memory of the shared pool back")
        self.assertTrue(third.check(3))
        before = used()
        other = block(60)
        self.assertGreaterEqual(used(), before, "the last replay was of a shared pool")
        del other
        self.assertTrue(second.check(4))

    def test_a_graph_ends_while_its_memory_is_lent(self) -> None:
        lend_graphs()
        before = torch.cuda.memory_reserved()
        copies = capture()
        self.assertTrue(copies.check(1))
        other = block(100)
        del copies, other
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.assertEqual(torch.cuda.memory_reserved(), before, "of the allocator, since the driver keeps more of its own")

    def test_a_pool_and_a_tag_lend(self) -> None:
        pool, tag = cachalot.MemPool(), Tag(self.id())
        for scope, lender in ((torch.cuda.use_mem_pool(pool), pool.lent), (tag, lambda: lent(tag))):
            with scope:
                kept = block(20)
                freed = block(100)
            kept.copy_(torch.full_like(kept, 7, device="cpu"))
            del freed
            before = used()
            with lender():
                other = block(80)
                self.assertLess(used(), before + 24 * MIB)
                del other
            self.assertTrue(bool((kept.cpu() == 7).all()))
        self.assertEqual(tag.parking.state, "awake")

    def test_several_streams(self) -> None:
        copies = capture()
        streams = [torch.cuda.Stream() for _ in range(3)]
        for number in range(9):
            with torch.cuda.stream(streams[number % 3]):
                self.assertTrue(copies.check(number))
                with lent(copies.graph):
                    other = block(100)
                    other[:MIB].copy_(copies.result[:MIB])
                    del other


class Refused(unittest.TestCase):
    """What lends nothing."""

    def test_ordinary_segments(self) -> None:
        if "expandable" not in CONFIG:
            self.skipTest("every pool is on pages")
        cachalot.configure("expandable_segments:False")
        try:
            copies = capture()
            with self.assertRaisesRegex(cachalot_gpu.CachalotError, "ordinary segments"), lent(copies.graph):
                pass
            self.assertTrue(copies.check(1))
        finally:
            cachalot.configure("expandable_segments:True")


if __name__ == "__main__":
    run(__file__, CONFIGS)
