"""Eight captured graphs of one program and eager work between their replays, with and without loans.

    python lending.py OUT [MODE...]

Needs a GPU and about three minutes; `tests/pytorch/run.sh` says how cachalot gets onto the path. OUT gets lending.csv
and cost.csv. Each mode is a separate process that does the same steps: the replay of one of eight graphs, each of
another batch size, then eager work on its results. *Peak*: the most memory that the process has of the driver after the warm-up
beyond what it had before the captures, in GiB. *Results*: whether every replay wrote the bytes of the first one, and
whether these are the bytes under PyTorch's allocator.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tables

MIB = 1 << 20
GIB = 1 << 30
WIDTH, LAYERS = 4096, 6
BATCHES = [1024 * count for count in (8, 7, 6, 5, 4, 3, 2, 1)]
ROUNDS, WARM_UP = 64, 16
PATIENCE_S = 240
EXPANDABLE = "expandable_segments:True"
# By name: the allocator, its settings, whether the graphs share a pool, and what lends.
MODES = {
    "PyTorch": ("torch", "", False, ""),
    "PyTorch, expandable": ("torch", EXPANDABLE, False, ""),
    "PyTorch, one pool": ("torch", "", True, ""),
    "cachalot, expandable": ("cachalot", EXPANDABLE, False, ""),
    "cachalot, expandable, `lent` in eager work": ("cachalot", EXPANDABLE, False, "lent"),
    "cachalot, expandable, `lend_graphs`": ("cachalot", EXPANDABLE, False, "lend_graphs"),
    "cachalot, stitched, `lend_graphs`": ("cachalot", "policy:stitched", False, "lend_graphs"),
}
HEAD = ["mode", "peak, GiB", "held by graphs, GiB", "ms a round", "longest, ms", "pages moved a round", "results"]
COST_HEAD = ["settings", "page, MiB", "pages", "lend, µs", "reclaim of nothing, µs", "taken, µs a page"]
COST_HEAD += ["reclaimed, µs a page"]


class Program:
    """A network, its graphs and its eager work."""

    def __init__(self, shares: bool) -> None:
        import torch

        self.torch = torch
        torch.manual_seed(1)
        torch.backends.cuda.matmul.allow_tf32 = False
        options = {"dtype": torch.bfloat16, "device": "cuda"}
        self.weights = [torch.randn(WIDTH, 4 * WIDTH, **options) / 64 for _ in range(LAYERS)]
        self.backs = [torch.randn(4 * WIDTH, WIDTH, **options) / 128 for _ in range(LAYERS)]
        self.inputs = [torch.randn(batch, WIDTH, **options) for batch in BATCHES]
        # Loads the kernels, which takes memory.
        self.eager(self.network(self.inputs[0]))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.before = used(torch)
        pool = torch.cuda.graph_pool_handle() if shares else None
        self.graphs: list[Any] = []
        self.results: list[Any] = []
        for rows in self.inputs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self.results.append(self.network(rows))
            self.graphs.append(graph)
        self.wanted = [self.first(number) for number in range(len(BATCHES))]

    def first(self, number: int) -> Any:
        """The results of the first replay of a graph."""
        self.graphs[number].replay()
        return self.results[number].cpu()

    def network(self, rows: Any) -> Any:
        """The results of some rows. Every layer has a wide part in between."""
        for weight, back in zip(self.weights, self.backs):
            wide = self.torch.nn.functional.gelu(rows @ weight)
            rows = rows + wide @ back
        return rows

    def eager(self, results: Any) -> float:
        """Work without a graph, as a sampler does it: sorts numbers, and sums some up."""
        numbers = results.float().repeat(1, 2)
        values, _ = numbers.sort(dim=1)
        return float(values[:, -8:].double().sum())


def used(torch: Any) -> int:
    """Bytes of the device in use."""
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def start(allocator: str, config: str) -> Any:
    """Puts an allocator in place."""
    import torch

    if allocator == "cachalot":
        import cachalot_gpu.torch

        cachalot_gpu.torch.enable(config)
    torch.cuda.init()
    return torch


def moves() -> int:
    """How many pages were unmapped so far."""
    import cachalot_gpu.torch

    return int(cachalot_gpu.torch.statistics()["pages.unmap.calls"])


def child(mode: str) -> None:
    """Does the steps of a mode, and prints what was measured as JSON."""
    allocator, config, shares, lends = MODES[mode]
    torch = start(allocator, config)
    if lends == "lend_graphs":
        import cachalot_gpu.torch

        cachalot_gpu.torch.lend_graphs()
    program = Program(shares)
    torch.cuda.synchronize()
    graphs = used(torch) - program.before
    found: dict[str, Any] = {"graphs": graphs, "peak": 0, "seconds": [], "pages": 0, "equal": True}
    counted = moves() if allocator == "cachalot" else 0
    for number in range(WARM_UP + ROUNDS):
        at = number * 3 % len(BATCHES)
        if number == WARM_UP:
            counted = moves() if allocator == "cachalot" else 0
        begin = time.perf_counter()
        program.graphs[at].replay()
        if lends == "lent":
            import cachalot_gpu.torch

            with cachalot_gpu.torch.lent(*program.graphs):
                program.eager(program.results[at])
                most = used(torch)
        else:
            program.eager(program.results[at])
            most = used(torch)
        torch.cuda.synchronize()
        if number >= WARM_UP:
            found["seconds"].append(time.perf_counter() - begin)
            found["peak"] = max(found["peak"], most - program.before, used(torch) - program.before)
        found["equal"] &= bool(torch.equal(program.results[at].cpu(), program.wanted[at]))
    rows = b"".join(result.view(torch.uint8).numpy().tobytes() for result in program.wanted)
    found["digest"] = hashlib.sha256(rows).hexdigest()
    found["pages"] = (moves() - counted if allocator == "cachalot" else 0) / ROUNDS
    print(json.dumps(found), flush=True)


def microseconds(torch: Any, act: Any) -> float:
    """The time of a call on an idle device, in µs."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    act()
    return (time.perf_counter() - begin) * 1e6


def cost(config: str) -> None:
    """Measures lending and reclaiming a pool of 2 GiB, and prints the medians as JSON."""
    torch = start("cachalot", config)
    from cachalot_gpu.torch import _loans, lent

    graph = torch.cuda.CUDAGraph()
    rows = torch.zeros(256 * MIB, dtype=torch.uint8, device="cuda")
    with torch.cuda.graph(graph):
        first = rows.repeat(4)
        second = first + 1
        result = second[:16].clone()
        del first, second
    with lent(graph):
        pass
    graph.replay()
    place, wanted = _loans._place(graph), 2 * GIB - 64 * MIB
    found: dict[str, list[float]] = {name: [] for name in ("lend", "nothing", "taken", "reclaimed", "pages")}
    for _ in range(20):
        graph.replay()
        found["lend"].append(microseconds(torch, lambda: _loans._lend(place)))
        found["nothing"].append(microseconds(torch, lambda: _loans._reclaim(place)))
        _loans._lend(place)
        held: list[Any] = []
        counted = moves()
        taken = microseconds(torch, lambda: held.append(torch.empty(wanted, dtype=torch.uint8, device="cuda")))
        pages = moves() - counted
        held.clear()
        reclaimed = microseconds(torch, lambda: _loans._reclaim(place))
        found["pages"].append(pages)
        found["taken"].append(taken / max(pages, 1))
        found["reclaimed"].append(reclaimed / max(pages, 1))
        graph.replay()
        assert bool((result == 1).all())
    medians = {name: statistics.median(times[4:]) for name, times in found.items()}
    print(json.dumps(medians), flush=True)


def run(*arguments: str, allocator: str = "cachalot", config: str = "") -> dict[str, Any]:
    """What a child says, or why it ended."""
    variables = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if allocator == "torch" and config:
        variables["PYTORCH_CUDA_ALLOC_CONF"] = config
    done = subprocess.run(
        [sys.executable, __file__, *arguments], env=os.environ | variables, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False,
    )
    if done.returncode:
        print(arguments, done.stderr[-2000:], file=sys.stderr, flush=True)
        return {}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(arguments, {**found, "seconds": None}, file=sys.stderr, flush=True)
    return found


def row(mode: str, digests: set[str]) -> list[str]:
    """A row of the table of modes. Adds the digest of the results to `digests`."""
    allocator, config, _, _ = MODES[mode]
    found = run("--child", mode, allocator=allocator, config=config)
    if not found:
        return [mode, *["failed"] * (len(HEAD) - 1)]
    times = [seconds * 1000 for seconds in found["seconds"]]
    cells = [mode, f"{found['peak'] / GIB:.2f}", f"{found['graphs'] / GIB:.2f}", f"{statistics.median(times):.2f}"]
    cells += [f"{max(times):.2f}", f"{found['pages']:.1f}"]
    digests.add(found["digest"])
    return [*cells, "equal" if found["equal"] and len(digests) == 1 else "differ"]


def cost_row(config: str) -> list[str]:
    """A row of the table of costs."""
    found = run("--cost", config)
    if not found:
        return [config, *["failed"] * (len(COST_HEAD) - 1)]
    length = (2 * GIB - 64 * MIB) / MIB / found["pages"]
    cells = [config, f"{length:.0f}", f"{found['pages']:.0f}"]
    return [*cells, *(f"{found[name]:.1f}" for name in ("lend", "nothing", "taken", "reclaimed"))]


def main() -> None:
    """The tables."""
    out, *modes = sys.argv[1:]
    Path(out).mkdir(parents=True, exist_ok=True)
    rows, costs, digests = [HEAD], [COST_HEAD], set[str]()
    for mode in modes or MODES:
        rows.append(row(mode, digests))
        print(tables.write(Path(out) / "lending.csv", rows))
    if not modes:
        for config in (EXPANDABLE, "policy:stitched"):
            costs.append(cost_row(config))
            print(tables.write(Path(out) / "cost.csv", costs))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    elif sys.argv[1:2] == ["--cost"]:
        cost(sys.argv[2])
    else:
        main()
