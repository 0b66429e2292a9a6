"""torch_memory_saver's examples, in words of our own, on ``cachalot_gpu.memory_saver``.

    python test_memory_saver.py [CONFIG...]

Each configuration is a process of its own.
"""

from __future__ import annotations

import gc
import unittest

import torch

import cachalot_gpu
import cachalot_gpu.torch
from cachalot_gpu.memory_saver import torch_memory_saver as saver
from each import CONFIG, run, used

MIB = 1 << 20
CONFIGS = ("policy:caching", "policy:stitched", "policy:caching,expandable_segments:True")
if CONFIG and CONFIG != CONFIGS[0]:
    cachalot_gpu.torch.enable(CONFIG)


def setUpModule() -> None:
    """The first region enables cachalot, where the program has not."""
    with saver.region("first"):
        torch.zeros(1, device="cuda")


def full(size: int, value: int) -> torch.Tensor:
    """A tensor of so many bytes with one value."""
    return torch.full((size,), value, dtype=torch.uint8, device="cuda")


class Examples(unittest.TestCase):
    """Contents, addresses, memory given back and graphs."""

    def setUp(self) -> None:
        self.name = self.id().rpartition(".")[2]
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def tearDown(self) -> None:
        saver.retain_cpu_backup = False
        saver.resume()
        torch.cuda.synchronize()

    def test_a_simple_region(self) -> None:
        normal = full(1_000_000, 100)
        with saver.region():
            tensor = full(1_000_000_000, 100)
        address, before = tensor.data_ptr(), used()
        saver.pause()
        paused = used()
        self.assertGreater(before - paused, 950_000_000)
        self.assertEqual(normal.float().mean().item(), 100)
        saver.resume()
        self.assertGreater(used() - paused, 950_000_000)
        self.assertEqual(tensor.data_ptr(), address)
        tensor.fill_(3)
        self.assertEqual(tensor[-3:].tolist(), [3, 3, 3])

    def test_tags(self) -> None:
        with saver.region("first", enable_cpu_backup=True):
            first = full(300 * MIB, 1)
        with saver.region("second", enable_cpu_backup=True):
            second = full(200 * MIB, 2)
        before = used()
        saver.pause("first")
        self.assertGreaterEqual(before - used(), 300 * MIB)
        self.assertEqual(int(second.sum()), 400 * MIB)
        # The sum needed memory of its own, which stays cached.
        torch.cuda.empty_cache()
        saver.pause("second")
        self.assertGreaterEqual(before - used(), 500 * MIB)
        saver.resume("second")
        self.assertEqual(int(second.sum()), 400 * MIB)
        saver.resume("first")
        saver.pause("first")
        saver.resume("first")
        self.assertEqual(int(first.sum()), 300 * MIB)

    def test_contents_with_a_backup_and_without(self) -> None:
        for backend in ("mmap", "pinned"):
            with saver.region(self.name, enable_cpu_backup=True, cpu_backup_backend=backend):
                kept = full(20_000_000, 10)
                typed = torch.randn(10, 20, 30, device="cuda")
            with saver.region(self.name):
                dropped = full(20_000_000, 20)
            wanted, addresses = typed.cpu(), [tensor.data_ptr() for tensor in (kept, typed, dropped)]
            saver.pause(self.name)
            with self.assertRaises(NotImplementedError):
                saver.get_cpu_backup(typed)
            other = full(20_000_000, 30)
            saver.resume(self.name)
            self.assertEqual([tensor.data_ptr() for tensor in (kept, typed, dropped)], addresses)
            self.assertTrue(torch.equal(typed.cpu(), wanted))
            self.assertTrue(bool((kept == 10).all()) and bool((other == 30).all()))
            self.assertIsNone(saver.get_cpu_backup(typed))
            dropped.fill_(5)
            self.assertTrue(bool((dropped == 5).all()) and bool((kept == 10).all()))
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                copy = kept.clone()
            side.synchronize()
            self.assertTrue(torch.equal(copy, kept))

    def test_memory_of_the_host_that_is_retained(self) -> None:
        with saver.region(self.name, enable_cpu_backup=True):
            tensor = full(64 * MIB, 7)
        saver.retain_cpu_backup = True
        for value in (7, 8, 9):
            tensor.fill_(value)
            saver.pause(self.name)
            saver.resume(self.name)
            self.assertEqual(int(tensor.sum()), value * 64 * MIB)
        part = f"memory_saver: {self.name} (kept)"
        self.assertGreaterEqual(cachalot_gpu.torch.Tag(part).parking.idle_host_bytes, 64 * MIB)
        saver.retain_cpu_backup = False
        self.assertEqual(cachalot_gpu.torch.Tag(part).parking.host_bytes, 0)

    def test_nested_regions(self) -> None:
        count = 10_000_000
        with saver.region(f"{self.name} outer", enable_cpu_backup=True):
            weight = torch.full((count,), 42.0, device="cuda")
            with saver.region(f"{self.name} inner"):
                grads = torch.full((count,), 99.0, device="cuda")
            later = torch.full((count,), 7.0, device="cuda")
        before = used()
        saver.pause(f"{self.name} inner")
        self.assertGreaterEqual(before - used(), 4 * count)
        self.assertEqual(weight.sum().item(), 42.0 * count)
        saver.pause()
        self.assertGreaterEqual(before - used(), 12 * count)
        saver.resume()
        self.assertEqual([weight.sum().item(), later.sum().item()], [42.0 * count, 7.0 * count])
        self.assertEqual(grads.zero_().sum().item(), 0)

    def test_disable(self) -> None:
        # The kernels are loaded, which takes memory of the device as well.
        full(1000, 1).float().mean().item()
        with saver.region(self.name, enable_cpu_backup=True):
            weights = [full(size, 42) for size in (1 << 28, 1 << 20, 1 << 10, 42)]
            saver.pause(self.name)
            with self.assertRaisesRegex(RuntimeError, "parked"):
                full(1000, 1)
            paused = used()
            with saver.disable():
                outside = full(1 << 28, 53)
                self.assertEqual(outside.float().mean().item(), 53)
                self.assertGreater(used(), paused + (1 << 28))
                del outside
            torch.cuda.empty_cache()
            self.assertLessEqual(used(), paused + 32 * MIB)
            saver.resume(self.name)
            self.assertEqual([tensor.float().mean().item() for tensor in weights], [42] * 4)

    def test_a_graph_whose_memory_is_paused(self) -> None:
        with saver.region(f"{self.name} cache"):
            cache = torch.full((5, 20_000_000), 1.0, device="cuda")
        argument = torch.zeros(5, device="cuda")

        def run() -> torch.Tensor:
            value = (argument + cache.mean(1)).mean()
            return (torch.ones(250_000_000, device="cuda") * value).mean()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with saver.cuda_graph(graph, tag=f"{self.name} graph"):
            result = run()
        argument.fill_(100)
        graph.replay()
        wanted = result.cpu()
        self.assertEqual(wanted.item(), 101)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = used()
        saver.pause(f"{self.name} cache")
        between = used()
        self.assertGreater(before - between, 390_000_000)
        saver.pause(f"{self.name} graph")
        self.assertGreater(between - used(), 1_000_000_000)
        other = full(1_200_000_000, 0)
        del other
        torch.cuda.empty_cache()
        saver.resume(f"{self.name} graph")
        saver.resume(f"{self.name} cache")
        cache.fill_(1)
        graph.replay()
        self.assertTrue(torch.equal(result.cpu(), wanted))
        cache.fill_(2)
        argument.fill_(200)
        graph.replay()
        self.assertEqual(result.item(), 202)

    def test_graphs_that_share_a_pool(self) -> None:
        handle, graphs, results = torch.cuda.graph_pool_handle(), [], []
        argument = torch.zeros(1 << 20, device="cuda")
        for number in range(3):
            graph = torch.cuda.CUDAGraph()
            with saver.cuda_graph(graph, pool=handle, tag=self.name, enable_cpu_backup=True):
                results.append((argument * 3 + number).cos())
            graphs.append(graph)
        argument.fill_(0.25)
        for graph in graphs:
            graph.replay()
        wanted = [result.cpu() for result in results]
        saver.pause(self.name)
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "is paused"):
            with saver.cuda_graph(torch.cuda.CUDAGraph(), pool=handle, tag=self.name, enable_cpu_backup=True):
                pass
        saver.resume(self.name)
        self.assertTrue(all(torch.equal(result.cpu(), before) for result, before in zip(results, wanted)))
        for graph, result, before in zip(graphs, results, wanted):
            result.zero_()
            graph.replay()
            self.assertTrue(torch.equal(result.cpu(), before))

    def test_a_graph_that_goes_gives_its_memory_back(self) -> None:
        before = torch.cuda.memory_reserved()
        graph = torch.cuda.CUDAGraph()
        with saver.cuda_graph(graph, tag=self.name):
            result = torch.ones(64 * MIB, device="cuda") + 1
        self.assertGreaterEqual(torch.cuda.memory_reserved() - before, 256 * MIB)
        del graph, result
        gc.collect()
        torch.cuda.empty_cache()
        self.assertEqual(torch.cuda.memory_reserved(), before)
        saver.pause(self.name)
        saver.resume(self.name)

    def test_an_engine_that_learns_and_serves(self) -> None:
        size = 4096
        with saver.region(f"{self.name} cache"):
            cache = torch.full((5, 20_000_000), 1.0, device="cuda")
        with saver.region(f"{self.name} weights"):
            linear = torch.nn.Linear(size, size, bias=False, device="cuda")
            torch.nn.init.ones_(linear.weight)
        addresses = [cache.data_ptr(), linear.weight.data_ptr()]
        argument = torch.zeros(size, device="cuda")

        def run() -> torch.Tensor:
            with torch.no_grad():
                return (argument[:5] + cache.mean(1)).mean() + linear(argument).mean()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = run()
        argument.fill_(100)
        graph.replay()
        self.assertEqual(result.item(), 100 * size + 101)
        before = used()
        saver.pause(f"{self.name} cache")
        saver.pause(f"{self.name} weights")
        self.assertGreater(before - used(), 460_000_000)
        saver.resume(f"{self.name} weights")
        saver.resume(f"{self.name} cache")
        self.assertEqual([cache.data_ptr(), linear.weight.data_ptr()], addresses)
        cache.fill_(2)
        with torch.no_grad():
            linear.weight.fill_(2)
        argument.fill_(200)
        graph.replay()
        self.assertEqual(result.item(), 400 * size + 202)
        saver.pause(f"{self.name} cache")
        self.assertEqual(linear.weight[0, 0].item(), 2)
        saver.resume(f"{self.name} cache")

    def test_freed_while_paused(self) -> None:
        with saver.region(self.name, enable_cpu_backup=True):
            gone, kept = full(6912, 1), full(6912, 2)
            large = full(64 * MIB, 3)
        saver.pause(self.name)
        del gone, large
        saver.resume(self.name)
        self.assertEqual(int(kept.sum()), 2 * 6912)

    def test_what_would_end_the_other_package(self) -> None:
        with saver.region(self.name, enable_cpu_backup=True):
            tensor = full(10_000_000, 9)
        saver.resume(self.name)
        for _ in range(2):
            saver.pause(self.name)
        saver.pause("nowhere")
        saver.resume("nowhere")
        for _ in range(2):
            saver.resume(self.name)
        self.assertEqual(int(tensor.sum()), 90_000_000)


if __name__ == "__main__":
    run(__file__, CONFIGS)
