"""Memory that is parked and wakes, under PyTorch: tags, modes, statistics, captured graphs, misuse.

    python test_parking.py [CONFIG...]

Each configuration is a process of its own, by default the three of ``CONFIGS``.
"""

from __future__ import annotations

import gc
import pickle
import tempfile
import threading
import unittest
from pathlib import Path

import torch

import cachalot_gpu
import cachalot_gpu.torch as cachalot
from cachalot_gpu.torch import Tag
from each import CONFIG, run, used

MIB = 1 << 20
CONFIGS = ("policy:caching", "policy:caching,expandable_segments:True", "policy:stitched")
if CONFIG:
    cachalot.enable(CONFIG)


def pattern(mib: int, seed: int) -> torch.Tensor:
    """A tensor whose contents depend on nothing but the seed."""
    numbers = torch.arange(mib * MIB // 4, dtype=torch.int32, device="cuda")
    return numbers.mul_(73244475).add_(seed)


class Parked(unittest.TestCase):
    """Each test has a tag of its own: a pool lives as long as the process."""

    def setUp(self) -> None:
        self.name = self.id().rpartition(".")[2]
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def tearDown(self) -> None:
        cachalot.wake()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def tensors(self, name: str, sizes: tuple[int, ...] = (1, 3, 8, 25, 64)) -> list[torch.Tensor]:
        """Tensors under a tag, of so many MiB each. What their making needs is under the tag as well."""
        with Tag(name):
            return [pattern(mib, number) for number, mib in enumerate(sizes)]

    def equal(self, tensors: list[torch.Tensor]) -> None:
        """The contents are those of the beginning."""
        for number, tensor in enumerate(tensors):
            self.assertTrue(torch.equal(tensor, pattern(tensor.nbytes // MIB, number)), number)

    def test_contents_and_addresses(self) -> None:
        tensors = self.tensors(self.name)
        addresses = [tensor.data_ptr() for tensor in tensors]
        before = used()
        for retained in (0, 1 << 40, 0):
            cachalot.retain_host_memory(retained)
            Tag(self.name).park()
            Tag(self.name).park()
            report = Tag(self.name).parking
            self.assertEqual((report.state, report.mapped_bytes, report.ordinary_bytes), ("asleep", 0, 0))
            self.assertGreaterEqual(report.parked_bytes, 101 * MIB)
            self.assertEqual(report.kept_bytes, report.parked_bytes)
            self.assertGreaterEqual(report.host_bytes, report.kept_bytes)
            self.assertLessEqual(used(), before - 101 * MIB)
            # What takes the memory meanwhile.
            other = torch.full((200 * MIB,), 7, dtype=torch.uint8, device="cuda")
            Tag(self.name).wake()
            Tag(self.name).wake()
            self.assertEqual(Tag(self.name).parking.state, "awake")
            self.equal(tensors)
            self.assertEqual([tensor.data_ptr() for tensor in tensors], addresses)
            self.assertEqual(other.sum().item(), 7 * 200 * MIB)
            self.assertEqual(Tag(self.name).parking.host_bytes > 0, retained > 0)
            del other
            torch.cuda.empty_cache()

    def test_zeroes_and_anything(self) -> None:
        tensors = self.tensors(self.name)
        Tag(self.name).park(keep=False, zero=True)
        report = Tag(self.name).parking
        self.assertEqual((report.kept_bytes, report.host_bytes), (0, report.idle_host_bytes))
        Tag(self.name).wake()
        self.assertEqual([tensor.count_nonzero().item() for tensor in tensors], [0] * len(tensors))
        Tag(self.name).park(keep=False)
        Tag(self.name).wake()
        for number, tensor in enumerate(tensors):
            tensor.copy_(pattern(tensor.nbytes // MIB, number))
        self.equal(tensors)

    def test_pending_work_is_waited_for(self) -> None:
        for streams in (False, True):
            tensors = self.tensors(f"{self.name} {streams}")
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(100_000_000)
                tensors[2].add_(5)
                tensors[2].record_stream(side)
            Tag(f"{self.name} {streams}").park(streams=streams)
            Tag(f"{self.name} {streams}").wake()
            tensors[2].sub_(5)
            self.equal(tensors)

    def test_two_tags_in_their_order(self) -> None:
        first, second = self.tensors(f"{self.name} 1"), self.tensors(f"{self.name} 2")
        tags = [Tag(f"{self.name} 1"), Tag(f"{self.name} 2")]
        cachalot.park(*tags)
        cachalot.wake(*tags, wait=False)
        self.assertEqual([tag.parking.state for tag in tags], ["waking"] * 2)
        tags[0].wake()
        self.equal(first)
        tags[1].wake()
        self.equal(second)
        tags[1].park(keep=False)
        self.equal(first)
        tags[1].wake()

    def test_statistics_while_parked(self) -> None:
        tensors = self.tensors(self.name)
        torch.cuda.empty_cache()
        allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        Tag(self.name).park()
        parked, left = Tag(self.name).parking.parked_bytes, torch.cuda.memory_reserved()
        self.assertEqual(torch.cuda.memory_allocated(), allocated)
        # What the pool only cached is given back as well.
        self.assertLessEqual(left, reserved - parked)
        self.assertGreater(left, reserved - parked - 64 * MIB)
        self.assertEqual(cachalot.statistics()["pages.parked_bytes"], parked)
        self.assertIn("PyTorch CUDA memory summary", torch.cuda.memory_summary())
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        blocks = [
            piece["address"]
            for segment in torch.cuda.memory_snapshot()
            for piece in segment["blocks"]
            if piece["state"] == "active_allocated"
        ]
        self.assertLessEqual({tensor.data_ptr() for tensor in tensors}, set(blocks))
        with tempfile.TemporaryDirectory() as folder:
            torch.cuda.memory._dump_snapshot(f"{folder}/snapshot.pickle")
            snapshot = pickle.loads(Path(folder, "snapshot.pickle").read_bytes())
        self.assertTrue(snapshot["segments"])
        Tag(self.name).wake()
        self.assertEqual(torch.cuda.memory_reserved(), left + parked)
        self.equal(tensors)

    def test_a_request_under_a_parked_tag(self) -> None:
        tensors = self.tensors(self.name)
        Tag(self.name).park()
        allocated = torch.cuda.memory_allocated()
        with Tag(self.name):
            for mib in (1, 40):
                with self.assertRaisesRegex(RuntimeError, "parked"):
                    torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
        self.assertEqual(torch.cuda.memory_allocated(), allocated)
        # Other memory is served.
        self.assertEqual(torch.ones(1000, device="cuda").sum().item(), 1000)
        Tag(self.name).wake()
        with Tag(self.name):
            self.assertEqual(torch.ones(1000, device="cuda").sum().item(), 1000)
        self.equal(tensors)

    def test_freed_while_parked(self) -> None:
        tensors = self.tensors(self.name, (1, 3, 8, 25, 64, 2))
        Tag(self.name).park()
        del tensors[5], tensors[3]
        tensors.insert(3, torch.empty(0))
        torch.cuda.empty_cache()
        Tag(self.name).wake()
        for number in (0, 1, 2, 4):
            self.assertTrue(torch.equal(tensors[number], pattern(tensors[number].nbytes // MIB, number)), number)

    def test_no_memory_to_wake(self) -> None:
        tensors = self.tensors(self.name, (256, 256, 3))
        Tag(self.name).park()
        parked = Tag(self.name).parking
        torch.cuda.empty_cache()
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 300 * MIB) / total)
        try:
            for _ in range(2):
                with self.assertRaises(cachalot_gpu.OutOfMemoryError):
                    Tag(self.name).wake()
                report = Tag(self.name).parking
                self.assertEqual(report[:4], parked[:4])
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        Tag(self.name).wake()
        self.equal(tensors)

    def test_a_tag_wakes_though_the_next_cannot(self) -> None:
        first, second = self.tensors(f"{self.name} 1", (64,)), self.tensors(f"{self.name} 2", (512,))
        cachalot.park(Tag(f"{self.name} 1"), Tag(f"{self.name} 2"))
        torch.cuda.empty_cache()
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 300 * MIB) / total)
        try:
            with self.assertRaises(cachalot_gpu.OutOfMemoryError):
                cachalot.wake(Tag(f"{self.name} 1"), Tag(f"{self.name} 2"))
            self.assertEqual([Tag(f"{self.name} {n}").parking.state for n in (1, 2)], ["awake", "asleep"])
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        self.equal(first)
        cachalot.wake()
        self.equal(second)

    def test_cached_memory_makes_room(self) -> None:
        tensors = self.tensors(self.name, (256,))
        Tag(self.name).park()
        cached = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
        del cached
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 100 * MIB) / total)
        try:
            Tag(self.name).wake()
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        self.equal(tensors)

    def graphs(self, count: int) -> tuple[list[torch.cuda.CUDAGraph], list[torch.Tensor], list[torch.Tensor]]:
        """Captured graphs in the pool of the tag, which read tensors of the tag."""
        weights = self.tensors(self.name, (4, 4, 4))
        pool = Tag(self.name).pool().id
        # The graphs read them at every replay.
        self.inputs = [torch.full((1024,), float(number), device="cuda") for number in range(count)]
        side = torch.cuda.Stream()
        graphs, outputs = [], []
        with torch.cuda.stream(side):
            # Before the capture: cuBLAS has memory for every stream.
            (torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")).sum().item()
        for number, argument in enumerate(self.inputs):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=side):
                matrix = (weights[number % 3].view(1024, 1024) & 1023).float() + argument
                outputs.append((matrix @ matrix.t()).relu().sum(0))
            graphs.append(graph)
            del matrix
        return graphs, outputs, weights

    def test_graphs_compute_the_same(self) -> None:
        graphs, outputs, weights = self.graphs(4)
        for graph in graphs:
            graph.replay()
        wanted = [output.cpu() for output in outputs]
        for _ in range(2):
            Tag(self.name).park()
            self.assertEqual(Tag(self.name).parking.mapped_bytes, 0)
            Tag(self.name).wake()
            self.equal(weights)
            # Before the first replay, which writes to memory of the graphs behind it.
            for output, before in zip(outputs, wanted):
                self.assertTrue(torch.equal(output.cpu(), before))
            for graph, output, before in zip(graphs, outputs, wanted):
                output.zero_()
                graph.replay()
                self.assertTrue(torch.equal(output.cpu(), before))

    def test_no_park_under_a_capture(self) -> None:
        tensors = self.tensors(self.name)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = torch.ones(1000, device="cuda") + 1
            for streams in (False, True):
                with self.assertRaises(cachalot_gpu.CachalotError):
                    Tag(self.name).park(streams=streams)
        self.assertEqual(Tag(self.name).parking.state, "awake")
        graph.replay()
        self.assertEqual(out.sum().item(), 2000)
        self.equal(tensors)

    def test_other_threads_go_on(self) -> None:
        tensors = self.tensors(self.name, (256, 512))
        stop, rounds, failures = threading.Event(), [0], []

        def work() -> None:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                while not stop.is_set():
                    made = [torch.full((size,), 3, dtype=torch.uint8, device="cuda") for size in (700, MIB, 9 * MIB)]
                    if int(made[1][-1]) != 3:
                        failures.append(rounds[0])
                    rounds[0] += 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for number in range(10):
                Tag(self.name).park(keep=number % 3 != 2, streams=number % 2 == 1)
                Tag(self.name).wake()
                if number % 3 == 2:
                    for seed, tensor in enumerate(tensors):
                        tensor.copy_(pattern(tensor.nbytes // MIB, seed))
        finally:
            stop.set()
            thread.join()
        self.equal(tensors)
        self.assertEqual(failures, [])
        self.assertGreater(rounds[0], 10)

    def test_unknown_tags(self) -> None:
        nowhere = Tag("nowhere")
        for call in (nowhere.park, nowhere.wake, nowhere.trim, lambda: nowhere.parking, lambda: nowhere.held):
            with self.assertRaisesRegex(cachalot_gpu.CachalotError, "no memory has the tag 'nowhere'"):
                call()

    def test_everything(self) -> None:
        first, second = self.tensors(f"{self.name} 1"), self.tensors(f"{self.name} 2")
        cachalot.park()
        self.assertEqual([Tag(f"{self.name} {n}").parking.state for n in (1, 2)], ["asleep"] * 2)
        cachalot.wake()
        self.equal(first)
        self.equal(second)

    def test_many_cycles_do_not_grow(self) -> None:
        tensors = self.tensors(self.name, (8, 3, 1))
        figures = []
        for _ in range(30):
            Tag(self.name).park()
            Tag(self.name).wake()
            figures.append((used(), torch.cuda.memory_reserved(), Tag(self.name).parking.host_bytes))
        self.assertEqual(figures[-1], figures[2])
        self.equal(tensors)


if __name__ == "__main__":
    run(__file__, CONFIGS)
