"""``cachalot_gpu.torch.lent`` and ``lend_graphs``: which pools are lent when, and what comes back before a replay."""

from __future__ import annotations

import types
import unittest
from typing import Any

import torch  # the stand-in

import cachalot_gpu
import parking
from cachalot_gpu import _library
from cachalot_gpu.torch import Tag, _loans, lend_graphs, lent

CAPTURING, UNKNOWN_POOL = 340, 152


class CUDAGraph:
    """``torch.cuda.CUDAGraph``: a graph without a pool gets one of its own."""

    pools = 0

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Begins a capture."""
        CUDAGraph.pools += 1
        self.of = tuple(pool) if pool is not None else (0, CUDAGraph.pools)

    def pool(self) -> tuple[int, int]:
        """The id of the pool."""
        return self.of

    def replay(self) -> None:
        """Runs the graph."""
        calls.append(("replay", self.of))


calls: list[tuple[Any, ...]] = []


class Library(parking.Library):
    """The functions of the library that lend memory."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals: dict[str, cachalot_gpu.CachalotError] = {}

    def _called(self, name: str, pool: _library.Pool, *more: Any) -> None:
        calls.append((name, (pool.first, pool.second), *more))
        if name in self.refusals:
            raise self.refusals[name]

    def cachalot_pool_lend(self, handle: Any, device: int, pool: _library.Pool) -> None:
        self._called("lend", pool)

    def cachalot_pool_reclaim(self, handle: Any, device: int, pool: _library.Pool, stream: int) -> None:
        self._called("reclaim", pool, stream)


class Lending(unittest.TestCase):
    """Graphs of one device."""

    def setUp(self) -> None:
        parking.install()
        self.library = Library()
        _library.library = lambda: self.library  # type: ignore[assignment,return-value]
        torch.cuda.CUDAGraph = type("CUDAGraph", (CUDAGraph,), {
            "capture_begin": CUDAGraph.capture_begin, "replay": CUDAGraph.replay,
        })
        torch.cuda.current_stream = lambda device=None: types.SimpleNamespace(cuda_stream=9)
        _loans._held.clear()
        _loans._graphs.clear()
        lend_graphs(False)
        calls.clear()

    def captured(self, pool: Any = None) -> Any:
        """Returns a captured graph."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(*(() if pool is None else (pool,)))
        return graph

    def names(self) -> list[str]:
        """The calls so far, which are then forgotten."""
        named = [call[0] for call in calls]
        calls.clear()
        return named

    def test_a_block_lends_at_its_begin_and_reclaims_at_its_end(self) -> None:
        graph = self.captured()
        with lent(graph), lent(graph.pool()):
            self.assertEqual(calls, [("lend", graph.of)])
            with self.assertRaisesRegex(cachalot_gpu.CachalotError, "a replay with memory of the pool"):
                graph.replay()
            with self.assertRaisesRegex(cachalot_gpu.CachalotError, "a capture into the pool"):
                self.captured(graph.of)
        self.assertEqual(calls, [("lend", graph.of), ("reclaim", graph.of, 9)])
        calls.clear()
        graph.replay()
        self.assertEqual(self.names(), ["reclaim", "replay"])

    def test_a_failed_loan_undoes_those_before(self) -> None:
        first, second = self.captured(), self.captured()
        failure = cachalot_gpu.CachalotError("its blocks lie in ordinary segments", 184)
        lend = self.library.cachalot_pool_lend

        def refuse(handle: Any, device: int, pool: _library.Pool) -> None:
            if pool.second == second.of[1]:
                raise failure
            lend(handle, device, pool)

        self.library.cachalot_pool_lend = refuse  # type: ignore[method-assign]
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "ordinary"), lent(first, second):
            self.fail("nothing is lent")
        self.assertEqual(self.names(), ["lend", "reclaim"])
        second.replay()

    def test_replays_lend_the_pools_that_graphs_have_for_themselves(self) -> None:
        early = self.captured()
        lend_graphs()
        own, shared = self.captured(), self.captured((7, 0))
        also = self.captured(own.of)
        calls.clear()
        for graph, expected in ((own, True), (shared, False), (also, False), (early, True)):
            graph.replay()
            self.assertEqual(self.names(), ["reclaim", "replay", "lend"][: 2 + expected])
        lend_graphs(False)
        own.replay()
        self.assertEqual(self.names(), ["reclaim", "replay"])

    def test_a_loan_is_left_out_while_another_stream_captures(self) -> None:
        lend_graphs()
        graph = self.captured()
        self.library.refusals = {"lend": cachalot_gpu.CachalotError("a capture", CAPTURING)}
        graph.replay()
        self.library.refusals = {"lend": cachalot_gpu.CachalotError("a failure", 300)}
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "a failure"):
            graph.replay()
        self.library.refusals = {"reclaim": cachalot_gpu.CachalotError("no pool", UNKNOWN_POOL)}
        self.names()
        self.captured((8, 0)).replay()
        self.assertEqual(self.names(), ["reclaim", "reclaim", "replay"])

    def test_a_replay_without_memory_does_not_run(self) -> None:
        graph = self.captured()
        self.library.refusals = {"reclaim": cachalot_gpu.OutOfMemoryError("no memory", 210)}
        calls.clear()
        with self.assertRaises(cachalot_gpu.OutOfMemoryError):
            graph.replay()
        self.assertEqual(self.names(), ["reclaim"])

    def test_a_tag_lends_every_pool_that_has_it(self) -> None:
        other = torch.cuda.MemPool()
        tag = Tag("buffers")
        tag.add_pool(other)
        with lent(tag):
            self.assertEqual({call[1] for call in calls}, {other.id})
            with tag:
                pass
        self.assertEqual(self.names(), ["lend", "reclaim"])
        with lent(tag):
            self.assertEqual(len(self.names()), 2)


if __name__ == "__main__":
    unittest.main()
