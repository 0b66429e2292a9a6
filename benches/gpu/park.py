"""Parks and wakes the memory of a model under one allocator, and measures it: a part of benches/gpu/park.sh.

    python3 park.py ALLOCATOR OUT [--weights GIB] [--cache GIB] [--tensors N] [--cycles N]

ALLOCATOR is plain, caching, stitched, saver-torch, saver-preload or cumem. Each part's figures are added to OUT as a
line of JSON as soon as they are there. With the load of 16 and 24 GiB the device needs 44 GiB, and the host 30 GiB.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from park_allocators import ALLOCATORS, Allocator, Plain, Skipped

GIB, MIB = 1 << 30, 1 << 20
CACHES = 36
GRAPHS = 8
# Elements of 4 bytes that are filled or compared at a time.
CHUNK = 8 * MIB
SIDE = 1024
# Cycles that measure the warm rates, after one that is not counted.
WARM = 3
KERNEL_MS = 80


def resident() -> int:
    """Bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Hashes:
    """Contents that depend on nothing but the number of a tensor and of an element: written, and compared."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.counter = torch.arange(CHUNK, dtype=torch.int32, device="cuda")
        self.scratch, self.wanted = torch.empty_like(self.counter), torch.empty_like(self.counter)
        self.flags = torch.empty(4 * CHUNK, dtype=torch.bool, device="cuda")
        self.total = torch.zeros((), dtype=torch.int64, device="cuda")

    def _write(self, to: Any, seed: int) -> None:
        torch, scratch = self.torch, self.scratch[: to.numel()]
        torch.add(self.counter[: to.numel()], seed, out=to)
        for factor in (73244475, 1540483477):
            torch.bitwise_right_shift(to, 15, out=scratch)
            to.bitwise_xor_(scratch).mul_(factor)

    @staticmethod
    def _chunks(tensor: Any, seed: int) -> Any:
        return ((chunk, (seed * 1_000_003 + 7919 * number) % GIB) for number, chunk in enumerate(tensor.split(CHUNK)))

    def fill(self, tensors: list[Any], first: int) -> None:
        """Writes the contents of tensors with the numbers from `first` on."""
        for number, tensor in enumerate(tensors):
            for chunk, seed in self._chunks(tensor, first + number):
                self._write(chunk, seed)

    def wrong(self, tensors: list[Any], first: int) -> int:
        """Counts the bytes that differ from what `fill` wrote."""
        torch, total = self.torch, 0
        for number, tensor in enumerate(tensors):
            for chunk, seed in self._chunks(tensor, first + number):
                wanted = self.wanted[: chunk.numel()]
                self._write(wanted, seed)
                flags = self.flags[: 4 * chunk.numel()]
                torch.ne(chunk.view(torch.uint8), wanted.view(torch.uint8), out=flags)
                self.total += flags.sum()
        total = int(self.total.item())
        self.total.zero_()
        return total


class Bench:
    """The load under one allocator, and the parts of the measurement."""

    def __init__(self, allocator: Allocator, out: Path, options: argparse.Namespace) -> None:
        import torch

        self.torch, self.allocator, self.out, self.options = torch, allocator, out, options
        torch.cuda.init()
        self.hashes = Hashes(torch)
        self.stream, self.side = torch.cuda.Stream(), torch.cuda.Stream()
        self.inputs = [torch.zeros(SIDE, dtype=torch.int32, device="cuda") for _ in range(GRAPHS)]
        # cuBLAS keeps memory for every stream, which must not be parked.
        matrix = torch.ones(SIDE, SIDE, device="cuda")
        for stream in (torch.cuda.current_stream(), self.stream):
            with torch.cuda.stream(stream):
                (matrix @ matrix).sum().item()
                self.hashes.wrong([self.hashes.counter], 0)
        del matrix
        self.cycles_of_ms = self._cycles_of_ms()
        self._free_cache()
        self.base, self.base_held, self.unparked = self.used(), allocator.held() or 0, 0
        self.tensors: dict[str, list[Any]] = {}
        self.outputs: list[tuple[Any, Any]] = []
        self.graphs: list[Any] = []

    def _free_cache(self) -> None:
        gc.collect()
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()

    def _cycles_of_ms(self) -> int:
        torch = self.torch
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(1_000_000)
        begin.record()
        torch.cuda._sleep(20_000_000)
        end.record()
        torch.cuda.synchronize()
        return int(20_000_000 / begin.elapsed_time(end))

    def used(self) -> int:
        """Bytes of the device that are in use, as the driver counts them."""
        free, total = self.torch.cuda.mem_get_info()
        return int(total - free)

    def report(self, part: str, **figures: Any) -> None:
        """Adds a line to the output."""
        line = json.dumps({"allocator": self.allocator.name, "part": part, **figures})
        with self.out.open("a", encoding="utf-8") as file:
            print(line, file=file, flush=True)
        print(line, file=sys.stderr, flush=True)

    def timed(self, act: Any, tag: str) -> float:
        """Seconds until an operation is complete on the device."""
        self.torch.cuda.synchronize()
        begin = time.perf_counter()
        act(tag)
        self.torch.cuda.synchronize()
        return time.perf_counter() - begin

    def obtain(self, tag: str, count: int, bytes_: int, first: int) -> list[Any]:
        """Makes and fills the tensors of a tag."""
        torch, each = self.torch, bytes_ // count // 512 * 128
        with self.allocator.region(tag):
            tensors = [torch.empty(each, dtype=torch.int32, device="cuda") for _ in range(count)]
        self.hashes.fill(tensors, first)
        self.tensors[tag] = tensors
        if isinstance(self.allocator, Plain):
            self.allocator.tensors = self.tensors
        return tensors

    def load(self) -> None:
        """Weights, cache and graphs."""
        begin, torch = time.perf_counter(), self.torch
        weights = self.obtain("weights", self.options.tensors, self.options.weights * GIB, 1)
        cache = []
        if not isinstance(self.allocator, Plain):
            cache = self.obtain("kv_cache", CACHES, self.options.cache * GIB, 9001)
            self.capture(weights, cache)
        torch.cuda.synchronize()
        self.report(
            "load",
            seconds=time.perf_counter() - begin,
            weights=sum(4 * tensor.numel() for tensor in weights),
            cache=sum(4 * tensor.numel() for tensor in cache),
            weights_pages=self.allocator.pages("weights"),
            used=self.used() - self.base,
        )

    def capture(self, weights: list[Any], cache: list[Any]) -> None:
        """Captures the graphs. What they take beyond the memory of tensors is never parked."""
        torch = self.torch
        self._free_cache()
        used, reserved = self.used(), torch.cuda.memory_reserved()
        for number, argument in enumerate(self.inputs):
            graph = torch.cuda.CUDAGraph()
            w, c = weights[number * 7 % len(weights)], cache[number * 5 % len(cache)]
            with self.allocator.capture(graph, self.stream):
                matrix = (w[: SIDE * SIDE].view(SIDE, SIDE) & 255).float() + argument
                product = matrix @ matrix.t()
                mixed = (c[-SIDE * SIDE :].view(SIDE, SIDE) ^ argument) * 3 + w[-SIDE:]
                large = torch.ones(16 * MIB, dtype=torch.float32, device="cuda") * product[0, 0]
                product[0, 0] = large.sum()
            del matrix, large
            self.graphs.append(graph)
            self.outputs.append((product, mixed))
            argument.fill_(number + 1)
        self._free_cache()
        tensors = torch.cuda.memory_reserved() - reserved if self.allocator.parks_graphs else 0
        self.unparked = self.used() - used - tensors
        self.expected = self.replayed()

    def replayed(self) -> list[tuple[Any, Any]]:
        """The results of the graphs, in memory of the host."""
        for graph in self.graphs:
            graph.replay()
        self.torch.cuda.synchronize()
        return [(product.cpu(), mixed.cpu()) for product, mixed in self.outputs]

    def equal_graphs(self) -> int:
        """The number of graphs that compute the same bits as before. The cache has its contents again."""
        equal = self.torch.equal
        pairs = zip(self.expected, self.replayed())
        return sum(all(equal(old, new) for old, new in zip(before, after)) for before, after in pairs)

    def cycle(self, all_tags: bool) -> dict[str, float]:
        """Parks everything and wakes it, and returns the seconds."""
        act, seconds = self.allocator, {}
        others = [tag for tag in ("kv_cache", "graphs") if all_tags and (tag != "graphs" or act.parks_graphs)]
        seconds["park"] = self.timed(act.park, "weights")
        for tag in others:
            seconds[f"park {tag}"] = self.timed(act.park, tag)
        if all_tags:
            self._free_cache()
            seconds["left"] = self.used() - self.base - self.unparked
            if (held := act.held()) is not None:
                seconds["held"] = held - self.base_held
        seconds["wake"] = self.timed(act.wake, "weights")
        for tag in others:
            seconds[f"wake {tag}"] = self.timed(act.wake, tag)
        return seconds

    def check(self, all_tags: bool) -> dict[str, int]:
        """Wrong bytes of the weights, and graphs that compute the same."""
        figures = {"wrong": self.hashes.wrong(self.tensors["weights"], 1)}
        if all_tags:
            self.hashes.fill(self.tensors["kv_cache"], 9001)
            figures["wrong"] += self.hashes.wrong(self.tensors["kv_cache"], 9001)
            figures["equal_graphs"] = self.equal_graphs()
        return figures

    def cold(self) -> None:
        """The first park, and the first wake, with no memory of the host kept."""
        rest = not isinstance(self.allocator, Plain)
        self._free_cache()
        before = resident()
        seconds = self.cycle(rest)
        after, told = resident() - before, self.allocator.host_bytes()
        self.report("cold", **seconds, **self.check(rest), resident=after, host=told)

    def warm(self) -> None:
        """Parks and wakes with the memory of the host kept."""
        rest = not isinstance(self.allocator, Plain)
        self.allocator.retain(2 * self.options.weights * GIB)
        self.cycle(rest)
        if rest:
            self.hashes.fill(self.tensors["kv_cache"], 9001)
        for _ in range(WARM):
            seconds = self.cycle(rest)
            if rest:
                self.hashes.fill(self.tensors["kv_cache"], 9001)
            self.report("warm", **seconds)
        self.report("warm contents", **self.check(rest))

    def busy(self) -> None:
        """The time of another thread's requests and frees while the weights are parked behind a long kernel."""
        torch, longest = self.torch, {"malloc": 0.0, "free": 0.0, "new": 0.0, "idle": 0.0}
        stop, parking = threading.Event(), threading.Event()
        sizes = [1 << 12, 3 << 14, 1 << 20, 5 << 20, 1 << 16, 11 << 20]

        def work() -> None:
            clock, number = time.perf_counter, 0
            held: list[Any] = []
            with torch.cuda.stream(self.side):
                warm = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes for _ in range(2)]
                del warm
                while not stop.is_set():
                    number += 1
                    # A larger block every now and then needs the driver, up to 1 GiB of them.
                    new = parking.is_set() and number % 256 == 0 and len(held) < 32
                    size = 32 * MIB if new else sizes[number % len(sizes)]
                    begin = clock()
                    block = torch.empty(size, dtype=torch.uint8, device="cuda")
                    middle = clock()
                    if new:
                        held.append(block)
                        longest["new"] = max(longest["new"], middle - begin)
                        continue
                    del block
                    end = clock()
                    if parking.is_set():
                        longest["malloc"] = max(longest["malloc"], middle - begin)
                        longest["free"] = max(longest["free"], end - middle)
                    else:
                        longest["idle"] = max(longest["idle"], end - begin)

        gc.collect()
        gc.disable()
        sys.setswitchinterval(5e-5)
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.3)
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(KERNEL_MS * self.cycles_of_ms)
        parking.set()
        begin = time.perf_counter()
        self.allocator.park("weights")
        parked = time.perf_counter() - begin
        parking.clear()
        stop.set()
        thread.join()
        sys.setswitchinterval(5e-3)
        gc.enable()
        self.allocator.wake("weights")
        torch.cuda.synchronize()
        self._free_cache()
        wrong = self.hashes.wrong(self.tensors["weights"], 1)
        self.report("busy", park=parked, wrong=wrong, **{f"{name}_ms": 1000 * of for name, of in longest.items()})

    def cycles(self) -> None:
        """Many cycles of a small load, with no memory of the host kept."""
        self.allocator.retain(0)
        tensors = self.obtain("small", 32, 64 * MIB, 20001)
        other = self.obtain("other", 4, 64 * MIB, 30001)
        figures: list[tuple[int, int]] = []
        begin = time.perf_counter()
        for number in range(self.options.cycles):
            for tag in ("small", "other"):
                self.allocator.park(tag)
            for tag in ("other", "small"):
                self.allocator.wake(tag)
            if number in (self.options.cycles // 10, self.options.cycles - 1):
                self.torch.cuda.synchronize()
                figures.append((self.used(), resident()))
        seconds = time.perf_counter() - begin
        wrong = self.hashes.wrong(tensors, 20001)
        self.hashes.fill(other, 30001)
        wrong += self.hashes.wrong(other, 30001) + self.hashes.wrong(self.tensors["weights"], 1)
        (used, host), (used_later, host_later) = figures[0], figures[-1]
        self.report(
            "cycles",
            cycles=self.options.cycles,
            seconds=seconds,
            grown=used_later - used,
            host_grown=host_later - host,
            wrong=wrong,
        )


def main() -> int:
    """Measures one allocator."""
    parser = argparse.ArgumentParser()
    parser.add_argument("allocator", choices=ALLOCATORS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", type=int, default=16)
    parser.add_argument("--cache", type=int, default=24)
    parser.add_argument("--tensors", type=int, default=2000)
    parser.add_argument("--cycles", type=int, default=100)
    options = parser.parse_args()
    if options.weights * GIB // options.tensors < 4 * SIDE * SIDE + 512:
        parser.error("a tensor of weights has 4 MiB at least: fewer tensors, or more weights")
    allocator = ALLOCATORS[options.allocator]()
    try:
        allocator.enable()
    except Skipped as reason:
        print(f"skipped: {allocator.name} ({reason})", file=sys.stderr)
        with options.out.open("a", encoding="utf-8") as file:
            print(json.dumps({"allocator": allocator.name, "part": "skipped", "reason": str(reason)}), file=file)
        return 0
    bench = Bench(allocator, options.out, options)
    parts = [bench.load, bench.cold, bench.warm]
    if not isinstance(allocator, Plain):
        parts += [bench.busy, bench.cycles]
    for part in parts:
        begin = time.perf_counter()
        part()
        print(f"{allocator.name}: {part.__name__} {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # The end of an interpreter finds pools of plug-ins in an order that some of them do not survive.
    os._exit(status)
