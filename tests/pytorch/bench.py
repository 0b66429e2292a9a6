"""Times every workload under every allocator: OUT gets a table for each, as CSV with its name.

    python bench.py [--only "ALLOCATOR;ALLOCATOR..."] OUT [WORKLOAD...]

At each workload, each allocator has a process of its own: the peak of an earlier workload would be part of the budget
of `policy:stitched`. The processes take short turns, one process at a time, so that a drift of the machine's clock
hits all alike, and all on the same few processors: one that another virtual machine disturbs would slow one of them
alone. Every second round has the opposite order, so that none always follows the same other. "× torch" is the median, over every step, of what it took under PyTorch's
allocator over what the same step took here: a burst of noise moves it little. "=" stands behind what is the same as
under PyTorch's allocator: the losses of every turn, and the peaks to the byte. "reserved ÷ allocated" divides the two
peaks. "calls for pages" are cachalot's of the driver that create, map and unmap pages, after the warm-up. With
`--only`, the named allocators run, and always PyTorch's. Ends with status 1 if a goal is missed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tables

BLOCKS = 5
TURNS_OF_A_BLOCK = 4
TURN_SECONDS = 0.2
WARM_UP_STEPS = 12
PATIENCE_S = 60
PROCESSORS = 4
MIB = 1 << 20
WORKLOADS = ["gpt2_training", "decoder_tuning", "diffusion_unet", "llm_decoding", "prefetcher"]
ALLOCATORS = {
    # what it is called: PYTORCH_CUDA_ALLOC_CONF, what cachalot is enabled with, whose MemPool is used
    "torch": ("", "", ""),
    "cachalot, swap": ("", "policy:caching", ""),
    "torch, expandable": ("expandable_segments:True", "", ""),
    "cachalot, swap, expandable": ("", "policy:caching,expandable_segments:True", ""),
    "cachalot, swap, stitched": ("", "policy:stitched", ""),
    "cudaMallocAsync": ("backend:cudaMallocAsync", "", ""),
    "torch, MemPool": ("", "", "torch"),
    "cachalot, MemPool": ("", "", "cachalot"),
}
GOALS = {
    # what it is called: the least × torch, the most reserved ÷ allocated; None: the peaks are PyTorch's, to the byte
    "cachalot, swap": (0.99, None),
    "cachalot, swap, stitched": (0.98, 1.05),
}
HEAD = ["allocator", "last loss", "peak allocated, MiB", "peak reserved, MiB", "reserved ÷ allocated", "process, MiB"]
HEAD += ["steps/s", "steps/s from", "steps/s to", "× torch", "calls for pages a step", "µs a step"]


class Child:
    """What a worker's process does."""

    def __init__(self, allocator: str) -> None:
        import torch

        import cachalot_gpu.torch

        self.torch = torch
        _, config, pool = ALLOCATORS[allocator]
        if config:
            cachalot_gpu.torch.enable(config, patch=True)
        if pool:
            # A pool takes the requests of one thread: so that thread does the backward pass, too.
            torch.autograd.set_multithreading_enabled(False)
        self.new_pool = {"": None, "torch": torch.cuda.MemPool, "cachalot": cachalot_gpu.torch.MemPool}[pool]
        torch.cuda.init()
        torch.zeros(1, device="cuda")

    def listen(self, workload: str) -> None:
        """Begins a workload, and answers each line, a number, by doing so many steps of it."""
        import workloads

        torch, number = self.torch, 0
        with contextlib.ExitStack() as inside:
            if self.new_pool:
                inside.enter_context(torch.cuda.use_mem_pool(self.new_pool()))
            step = workloads.WORKLOADS[workload]()
            print("{}", flush=True)
            for line in sys.stdin:
                times = [time.perf_counter()]
                for _ in range(int(line)):
                    loss = step(number)
                    number += 1
                    torch.cuda.synchronize()
                    times.append(time.perf_counter())
                seconds = [after - before for before, after in zip(times, times[1:])]
                answer = {"seconds": seconds, "loss": loss.item()}
                answer |= {"reserved": torch.cuda.max_memory_reserved(), "allocated": torch.cuda.max_memory_allocated()}
                answer["requests"] = torch.cuda.memory_stats()["allocation.all.allocated"]
                answer["pages"] = calls_for_pages()
                print(json.dumps(answer), flush=True)


def calls_for_pages() -> dict[str, float]:
    """The calls of the driver for pages so far, and their microseconds, by kind, if cachalot is switched on."""
    import cachalot_gpu.torch

    found = cachalot_gpu.torch.statistics() if cachalot_gpu.torch.enabled() else {}
    return {name: n for name, n in found.items() if name.startswith("pages.") and name.endswith((".calls", ".us"))}


class Worker:
    """One of those processes, as the parent sees it."""

    def __init__(
        self, allocator: str, workload: str, script: str = __file__, variables: dict[str, str] | None = None
    ) -> None:
        if variables is None:
            config = ALLOCATORS[allocator][0]
            variables = {"PYTORCH_CUDA_ALLOC_CONF": config} if config else {}
        environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} | variables
        command = [sys.executable, script, "--child", allocator, workload]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.answers: list[dict[str, Any]] = []

    def heard(self) -> dict[str, Any]:
        """Its next answer."""
        assert self.process.stdout
        if not select.select([self.process.stdout], [], [], PATIENCE_S)[0]:
            self.process.kill()
        if line := self.process.stdout.readline():
            answer: dict[str, Any] = json.loads(line)
            return answer
        raise SystemExit(f"{self.process.args} has ended, or took more than {PATIENCE_S} s")

    def told(self, steps: int) -> None:
        """Has it do some steps; keeps its answer, and how much memory it has then as the driver sees it."""
        assert self.process.stdin
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        self.answers.append(self.heard() | {"process": process_memory(self.process.pid)})


def process_memory(pid: int) -> int:
    """Bytes of the first GPU that a process uses, its context included, as the driver's management library says."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    used = {process.pid: process.usedGpuMemory for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    return used.get(pid) or 0


def quietest() -> set[int]:
    """The processors on which the same work takes the least time at present."""

    def seconds(processor: int) -> float:
        os.sched_setaffinity(0, {processor})
        times = [time.perf_counter()]
        for _ in range(10):
            sum(range(100_000))
            times.append(time.perf_counter())
        return statistics.median(after - before for before, after in zip(times, times[1:]))

    return set(sorted(os.sched_getaffinity(0), key=seconds)[:PROCESSORS])


def measure(workload: str, workers: dict[str, Worker]) -> int:
    """Has all of them run it, in turns; the answers stay with them. How many steps each turn had."""
    turns = [WARM_UP_STEPS, WARM_UP_STEPS, *[0] * BLOCKS * TURNS_OF_A_BLOCK]
    order = list(workers.items())
    for number in range(len(turns)):
        order.reverse()
        for allocator, worker in order:
            worker.told(turns[number])
            print(workload, allocator, turns[number], worker.answers[-1], file=sys.stderr, flush=True)
        if number == 1:
            # The second turn is warm: the others take a fixed time, and the same steps for all.
            pace = statistics.median(workers["torch"].answers[1]["seconds"])
            turns[2:] = [max(2, round(TURN_SECONDS / pace))] * len(turns[2:])
    return turns[-1]


def timed(answers: list[dict[str, Any]]) -> list[float]:
    """The seconds of each step after the warm-up."""
    return [seconds for answer in answers[2:] for seconds in answer["seconds"]]


def peak(answers: list[dict[str, Any]], key: str) -> int:
    """The largest figure of a process."""
    return max(answer[key] for answer in answers)


def total(pages: dict[str, float], end: str) -> float:
    """The sum over all kinds of calls."""
    return sum(number for name, number in pages.items() if name.endswith(end))


def row(allocator: str, answers: list[dict[str, Any]], base: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """A row of the table, and the goals that it misses; `base` are the answers of PyTorch's own allocator."""
    ours, theirs = timed(answers), timed(base)
    block = len(ours) // BLOCKS
    rates = sorted(block / sum(ours[start : start + block]) for start in range(0, len(ours), block))
    pace = statistics.median(other / own for other, own in zip(theirs, ours))
    same = all(other["loss"] == own["loss"] for other, own in zip(base, answers))
    equal = {key: peak(answers, key) == peak(base, key) for key in ("allocated", "reserved")}
    cells = [allocator, f"{answers[-1]['loss']!r} {'=' if same else 'differs'}"]
    cells += [f"{peak(answers, key) / MIB:,.1f} =" if equal[key] else f"{peak(answers, key) / MIB:.1f}" for key in equal]
    ratio = peak(answers, "reserved") / peak(answers, "allocated")
    cells += [f"{ratio:.3f}", f"{peak(answers, 'process') / MIB:.0f}"]
    cells += [f"{rate:.2f}" for rate in (statistics.median(rates), rates[0], rates[-1])] + [f"{pace:.3f}"]
    for end in (".calls", ".us"):
        more = total(answers[-1]["pages"], end) - total(answers[1]["pages"], end)
        cells.append(f"{more / len(ours):.1f}" if answers[-1]["pages"] else "")
    missed = [] if same else ["the losses differ"]
    if allocator in GOALS:
        least, most = GOALS[allocator]
        if pace < least:
            missed.append(f"{pace:.3f} × torch is less than {least}")
        if most is None and not all(equal.values()):
            missed.append("the peaks differ")
        if most is not None and ratio > most:
            missed.append(f"{ratio:.3f} reserved ÷ allocated is more than {most}")
    return cells, [f"{allocator}: {goal}" for goal in missed]


def main() -> int:
    """The tables."""
    arguments, chosen = sys.argv[1:], set(ALLOCATORS)
    if arguments[0] == "--only":
        chosen = {"torch", *arguments[1].split(";")}
        arguments = arguments[2:]
    if unknown := chosen - set(ALLOCATORS):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; known are {'; '.join(ALLOCATORS)}")
    out, *names = arguments
    os.sched_setaffinity(0, quietest())
    missed = []
    for name in names or WORKLOADS:
        workers = {allocator: Worker(allocator, name) for allocator in ALLOCATORS if allocator in chosen}
        for worker in workers.values():
            worker.heard()
        steps = measure(name, workers)
        base = workers["torch"].answers
        rows = [row(allocator, worker.answers, base) for allocator, worker in workers.items()]
        count = f"{BLOCKS} blocks of {TURNS_OF_A_BLOCK} turns of {steps} steps, after {2 * WARM_UP_STEPS}."
        print(f"{name}:", tables.write(Path(out) / f"{name}.csv", [HEAD, *(cells for cells, _ in rows)]), count, sep="\n")
        missed += [f"{name}, {goal}" for _, goals in rows for goal in goals]
        for worker in workers.values():
            worker.process.communicate(timeout=PATIENCE_S)
    print("every goal is reached" if not missed else "missed: " + "; ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        Child(sys.argv[2]).listen(sys.argv[3])
    else:
        sys.exit(main())
