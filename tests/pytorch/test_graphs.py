"""Captured graphs."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import unittest

import torch

from case import MIB, Case, only_cachalot


def graph_figures() -> list[list[int]]:
    """What a captured graph of a few sizes adds, and what is left when it goes."""
    figures = []
    keys = ["segment.all.current", "reserved_bytes.all.current", "active.all.current", "active_bytes.all.current"]
    for count in (128, MIB // 4, (MIB + 512) // 4, (10 * MIB - 512) // 4, (10 * MIB + 512) // 4):
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            first = torch.ones(count, device="cuda")
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            torch.cuda.empty_cache()
            before = torch.cuda.memory_stats()
            graph.capture_begin()
            result = first.clone()
            for _ in range(5):
                result = result.clone() + 1
            graph.capture_end()
            gc.collect()
            during = torch.cuda.memory_stats()
            graph.replay()
            side.synchronize()
            assert result.unique().tolist() == [6]
            del graph
            gc.collect()
            torch.cuda.empty_cache()
            after = torch.cuda.memory_stats()
        figures += [[stats[key] - before[key] for key in keys] for stats in (during, after)]
        del first, result
    return figures


class Graphs(Case):
    """Captured graphs have memory of their own."""

    @only_cachalot
    def test_the_same_figures_as_under_pytorchs_allocator(self) -> None:
        theirs = subprocess.run(
            [sys.executable, __file__, "--graph-figures"],
            env=os.environ | {"CACHALOT_TEST": "native"},
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertEqual(graph_figures(), json.loads(theirs.stdout))

    def test_replays_compute_the_same(self) -> None:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)).cuda()
        still = torch.randn(64, 256, device="cuda")
        with torch.no_grad():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                model(still)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = model(still)
            for _ in range(20):
                still.copy_(torch.randn_like(still))
                noise = [torch.full((random.randrange(1, 100_000),), 7.0, device="cuda") for _ in range(20)]
                graph.replay()
                torch.testing.assert_close(out, model(still))
                del noise

    def test_two_graphs_share_a_pool(self) -> None:
        pool = torch.cuda.graph_pool_handle()
        graphs, outs = [], []
        for value in (1.0, 2.0):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                outs.append(torch.full((1000,), value, device="cuda") + 1)
            graphs.append(graph)
        for graph in graphs:
            graph.replay()
        self.assertEqual([out.unique().tolist() for out in outs], [[2.0], [3.0]])
        reserved = torch.cuda.memory_reserved()
        del graphs, graph, outs
        gc.collect()
        torch.cuda.empty_cache()
        self.assertLess(torch.cuda.memory_reserved(), reserved)

    def test_a_recorded_stream_during_a_capture(self) -> None:
        side = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tensor = torch.ones(1000, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                tensor.add_(1)
            tensor.record_stream(side)
            del tensor
            torch.cuda.current_stream().wait_stream(side)
            out = torch.full((1000,), 5.0, device="cuda")
        graph.replay()
        torch.cuda.synchronize()
        self.assertEqual(out.unique().tolist(), [5.0])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--graph-figures"]:
        print(json.dumps(graph_figures()))
    else:
        unittest.main(verbosity=2)
