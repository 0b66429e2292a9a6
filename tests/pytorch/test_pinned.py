"""``cachalot_gpu.torch.enable(cuda=False, pinned=True)``: cachalot under PyTorch's pinned memory. PyTorch 2.8 or later.

    python test_pinned.py                      # the tests
    CACHALOT_TEST=native python test_pinned.py # those that need nothing of cachalot, under PyTorch's own allocator
    python test_pinned.py --measure OUT.csv    # both allocators side by side

The measurements: `pinned ÷ asked`, the most pinned over the most bytes of live tensors, for loaders of batches of equal and
of varying sizes; the median time of `torch.empty(pin_memory=True)` and its deletion, with the allocator's part unmeasured
where Python takes longer; the time until 16 GiB are pinned; the rates of copies of 1 GiB.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import unittest
from collections import deque
from pathlib import Path

import torch

import cachalot_gpu
import cachalot_gpu.torch
import tables

NATIVE = os.environ.get("CACHALOT_TEST") == "native"
MIB = 1 << 20
GIB = 1 << 30
only_cachalot = unittest.skipIf(NATIVE, "PyTorch's own allocator")


def pinned(size: int) -> torch.Tensor:
    """A pinned tensor of so many bytes."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def stat(*names: str) -> int:
    """A statistic of pinned memory, by the name that this version of PyTorch has for it."""
    stats = torch.cuda.host_memory_stats()
    return next(stats[name] for name in names if name in stats)


def held(kind: str = "current") -> int:
    """The bytes held from the system: `current` or `peak`."""
    return stat(f"reserved_bytes.{kind}", f"allocated_bytes.{kind}")


def live() -> int:
    """The bytes of live tensors."""
    stats = torch.cuda.host_memory_stats()
    return stats.get("active_bytes.current", stats["allocated_bytes.current"])


def empty_cache() -> None:
    """Gives unused pinned memory back to the system."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._host_emptyCache()


class Before(unittest.TestCase):
    """Memory that was pinned before cachalot came."""

    def test_it_stays_pytorchs(self) -> None:
        torch.cuda.init()
        tensor = torch.full((MIB,), 7, dtype=torch.uint8).pin_memory()
        if not NATIVE:
            self.assertFalse(cachalot_gpu.torch.enabled(pinned=True))
            cachalot_gpu.torch.enable(cuda=False, pinned=True)
            self.assertTrue(cachalot_gpu.torch.enabled(pinned=True))
            with self.assertRaises(cachalot_gpu.UnavailableError):
                cachalot_gpu.torch.enable(cuda=False, pinned=True)
        self.assertTrue(tensor.is_pinned())
        on_device = tensor.to("cuda", non_blocking=True)
        del tensor
        self.assertEqual(int(on_device.sum(dtype=torch.int64)), 7 * MIB)
        empty_cache()


class Pinned(unittest.TestCase):
    """Pinned tensors that come and go."""

    def setUp(self) -> None:
        empty_cache()

    @only_cachalot
    def test_a_tensor_takes_what_it_needs(self) -> None:
        before = live()
        for size in (1000, 3 * MIB + 5000, 38_535_168, 65 * MIB):
            tensor = pinned(size)
            self.assertTrue(tensor.is_pinned())
            # A segment of its own has whole pages of the host.
            self.assertLess(live() - before - size, 4096 if size > MIB else 512)
            if size > MIB:
                empty_cache()
                self.assertLessEqual(held() - before, size + 4096)
            del tensor
        self.assertEqual(live(), before)

    def test_an_empty_tensor_needs_nothing(self) -> None:
        before = live()
        self.assertEqual(torch.empty(0, pin_memory=True).numel(), 0)
        self.assertEqual(live(), before)

    def test_pin_memory_copies(self) -> None:
        tensor = torch.arange(100_000)
        self.assertFalse(tensor.is_pinned())
        copy = tensor.pin_memory()
        self.assertTrue(copy.is_pinned() and copy[10:].is_pinned())
        self.assertTrue(torch.equal(tensor, copy))

    def test_a_copy_keeps_a_tensor(self) -> None:
        size = 8 * MIB
        device = torch.zeros(size, dtype=torch.uint8, device="cuda")
        device.copy_(pinned(size), non_blocking=True)  # what the first copy loads waits for the device
        torch.cuda.synchronize()
        empty_cache()
        tensor = pinned(size).fill_(3)
        address = tensor.data_ptr()
        torch.cuda._sleep(500_000_000)
        device.copy_(tensor, non_blocking=True)
        del tensor
        other = pinned(size).fill_(9)
        self.assertNotEqual(other.data_ptr(), address)
        torch.cuda.synchronize()
        self.assertEqual(int(device.sum(dtype=torch.int64)), 3 * size)
        again = [pinned(size) for _ in range(2)]
        self.assertIn(address, [tensor.data_ptr() for tensor in again])

    def test_views_keep_their_tensor(self) -> None:
        device = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
        tensor = pinned(8 * MIB).fill_(1)
        torch.cuda._sleep(100_000_000)
        device.copy_(tensor[MIB : 2 * MIB], non_blocking=True)
        address = tensor.data_ptr()
        del tensor
        self.assertNotEqual(pinned(8 * MIB).fill_(2).data_ptr(), address)
        self.assertEqual(int(device.sum(dtype=torch.int64)), MIB)

    def test_copies_to_the_host(self) -> None:
        device = torch.arange(1 << 20, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results = [(device + number).to("cpu", non_blocking=True) for number in range(8)]
        stream.synchronize()
        for number, result in enumerate(results):
            self.assertTrue(result.is_pinned())
            self.assertEqual(int(result[0]), number)
            self.assertTrue(torch.equal(result, torch.arange(1 << 20) + number))

    def test_a_loader_pins_its_batches(self) -> None:
        data = torch.utils.data.TensorDataset(torch.arange(400 * 1000).reshape(400, 1000), torch.arange(400))
        for workers in (0, 2):
            loader = torch.utils.data.DataLoader(data, batch_size=32, num_workers=workers, pin_memory=True)
            total = count = 0
            for rows, labels in loader:
                self.assertTrue(rows.is_pinned() and labels.is_pinned())
                rows, labels = rows.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
                total += int(rows.sum())
                count += int(labels.numel())
            self.assertEqual((total, count), (sum(range(400 * 1000)), 400))

    def test_the_cache_goes_back(self) -> None:
        tensors = [pinned(20 * MIB) for _ in range(4)]
        full = held()
        self.assertGreaterEqual(full, 80 * MIB)
        del tensors
        empty_cache()
        self.assertLessEqual(held(), full - 80 * MIB)

    def test_statistics_are_reset(self) -> None:
        del_me = pinned(30 * MIB)
        torch.cuda.reset_peak_host_memory_stats()
        torch.cuda.reset_accumulated_host_memory_stats()
        self.assertEqual(held("peak"), held())
        self.assertEqual(held("allocated"), 0)
        other = pinned(50 * MIB)
        self.assertGreaterEqual(held("allocated"), 50 * MIB)
        self.assertGreaterEqual(stat("num_host_alloc"), 1)
        self.assertGreaterEqual(stat("host_alloc_time.count"), 1)
        del del_me, other

    def test_threads(self) -> None:
        wrong: list[int] = []

        def work(number: int) -> None:
            stream = torch.cuda.Stream()
            device = torch.empty(MIB, dtype=torch.uint8, device="cuda")
            with torch.cuda.stream(stream):
                for size in range(1000, MIB, 30_011):
                    device[:size].copy_(pinned(size).fill_(number), non_blocking=True)
                    back = device[:size].to("cpu", non_blocking=True)
                    stream.synchronize()
                    wrong.extend([size] * int((back != number).any()))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_a_child_frees_nothing(self) -> None:
        kept = [pinned(MIB)]
        child = os.fork()
        if child == 0:
            kept.clear()
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        kept[0].fill_(1)

    @unittest.skipIf(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11), "PyTorch reports captures from 2.11 on")
    def test_a_graph_keeps_what_it_copies_from(self) -> None:
        device = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.graph(graph, stream=stream):
            source = pinned(MIB).fill_(5)
            device.copy_(source, non_blocking=True)
        address = source.data_ptr()
        del source
        others = [pinned(MIB).fill_(8) for _ in range(4)]
        self.assertNotIn(address, [other.data_ptr() for other in others])
        device.zero_()
        graph.replay()
        self.assertEqual(int(device.sum(dtype=torch.int64)), 5 * MIB)
        graph.reset()
        before = held()
        del others
        empty_cache()
        self.assertLess(held(), before)

    @only_cachalot
    def test_more_than_there_is(self) -> None:
        with self.assertRaises(torch.OutOfMemoryError):
            pinned(1 << 50)


def pinned_over_asked(sizes: list[list[int]], depth: int) -> float:
    """The most pinned over the most asked for, of a loader with `depth` batches in flight."""
    empty_cache()
    torch.cuda.reset_peak_host_memory_stats()
    stream = torch.cuda.Stream()
    batches: deque[list[torch.Tensor]] = deque()
    asked = most = 0
    with torch.cuda.stream(stream):
        for batch in sizes:
            if len(batches) == depth:
                asked -= sum(tensor.numel() for tensor in batches.popleft())
            batches.append([pinned(size) for size in batch])
            asked += sum(batch)
            most = max(most, asked)
            for tensor in batches[-1]:
                tensor[:4096].to("cuda", non_blocking=True)
            stream.synchronize()
    return held("peak") / most


def measure() -> dict[str, float]:
    """Every figure of one allocator."""
    torch.cuda.init()
    if not NATIVE:
        cachalot_gpu.torch.enable(cuda=False, pinned=True)
    state = 1

    def draw(first: int, last: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return first + (state >> 33) % (last - first + 1)

    figures: dict[str, float] = {}
    begin = time.perf_counter()
    large = pinned(16 * GIB)
    figures["16 GiB pinned, s"] = time.perf_counter() - begin
    del large
    begin = time.perf_counter()
    empty_cache()
    figures["given back, s"] = time.perf_counter() - begin
    images = [[256 * 3 * 224 * 224 * 4, 256 * 8] for _ in range(100)]
    figures["images, pinned ÷ asked"] = pinned_over_asked(images, 9)
    audio = [[32 * draw(80_000, 320_000) * 4, 32 * 8] for _ in range(400)]
    figures["audio, pinned ÷ asked"] = pinned_over_asked(audio, 17)
    empty_cache()
    for size, name in [(4096, "4 KiB"), (32 * MIB, "32 MiB")]:
        times = []
        for _ in range(20):
            begin = time.perf_counter()
            for _ in range(1000):
                pinned(size)
            times.append((time.perf_counter() - begin) / 1000 * 1e9)
        figures[f"pair of {name}, ns"] = statistics.median(times)
    host, device = pinned(GIB), torch.empty(GIB, dtype=torch.uint8, device="cuda")
    for name, to, source in [("to the device", device, host), ("to the host", host, device)]:
        rates = []
        for _ in range(9):
            begin = time.perf_counter()
            to.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            rates.append(1 / (time.perf_counter() - begin))
        figures[f"{name}, GiB/s"] = statistics.median(rates[1:])
    return figures


def compare(to: Path) -> None:
    """Measures both allocators in turns, each time in a process of its own, and writes a table of medians."""
    rounds: dict[str, list[dict[str, float]]] = {"native": [], "": []}
    for _ in range(3):
        for name, of_allocator in rounds.items():
            command = [sys.executable, __file__, "--measure-one"]
            done = subprocess.run(
                command, env={**os.environ, "CACHALOT_TEST": name}, check=True, capture_output=True, text=True
            )
            of_allocator.append(json.loads(done.stdout.splitlines()[-1]))
    rows = [["", "PyTorch's own", "cachalot", "cachalot ÷ PyTorch's"]]
    for figure in rounds[""][0]:
        own, ours = (statistics.median(run[figure] for run in rounds[name]) for name in ("native", ""))
        rows.append([figure, f"{own:.4g}", f"{ours:.4g}", f"{ours / own:.3f}"])
    print(tables.write(to, rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure-one"]:
        print(json.dumps(measure()))
    elif sys.argv[1:2] == ["--measure"]:
        compare(Path(sys.argv[2]))
    else:
        unittest.main(verbosity=2)
