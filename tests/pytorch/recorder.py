"""Times three programs with and without the flight recorder, beside PyTorch's own recording on its own allocator.

    python recorder.py OUT [WORKLOAD...]

Needs a GPU and about five minutes; `tests/pytorch/run.sh` says how cachalot gets onto the path. OUT gets steps.csv:
what each way of recording adds to a step, and to an operation, which is a request or a free. The ways of a program take
turns, as those of bench.py do, each in its own process. "× off" is the median, over every step, of its time over
that of the same step of the same allocator without a recording. The first program also writes the events of each way to
a file, which OUT's dumps.csv has: PyTorch looks the names of frames up then.
"""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import bench
import tables

EVENTS = 131_072
WORKLOADS = ["gpt2_training", "diffusion_unet", "llm_decoding"]
DUMP_PATIENCE_S = 60
BUILD_PATIENCE_S = 300
MEGABYTE = 1_000_000
WAYS: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    # what it is called: the way without a recording, CACHALOT_RECORDER (empty: PyTorch's allocator), the arguments of
    # torch.cuda.memory._record_memory_history()
    "torch": ("torch", "", None),
    "torch, recording without stacks": ("torch", "", {"context": None, "max_entries": EVENTS}),
    "torch, recording Python stacks": ("torch", "", {"stacks": "python", "max_entries": EVENTS}),
    "torch, recording (its default)": ("torch", "", {"max_entries": EVENTS}),
    "cachalot, recorder off": ("cachalot, recorder off", "0", None),
    "cachalot, recorder (the default)": ("cachalot, recorder off", str(EVENTS), None),
    "cachalot, recorder with Python stacks": ("cachalot, recorder off", f"{EVENTS},stacks:True", None),
}
HEAD = ["program", "recording", "operations a step", "ms a step", "from", "to", "× off", "ns an operation"]
DUMP_HEAD = ["recording", "seconds", "MB"]


class Child(bench.Child):
    """What a worker's process does."""

    def __init__(self, way: str) -> None:
        import torch

        self.torch = torch
        self.new_pool = None
        _, recorder, self.history = WAYS[way]
        self.is_cachalot = bool(recorder)
        if self.is_cachalot:
            import cachalot_gpu.torch

            cachalot_gpu.torch.enable("policy:caching")
        torch.cuda.init()
        if self.history:
            torch.cuda.memory._record_memory_history(**self.history)
        torch.zeros(1, device="cuda")

    def dump(self) -> None:
        """Writes the events to a file, and prints the seconds and the bytes."""
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/events.pickle"
            begin = time.perf_counter()
            if self.is_cachalot:
                import cachalot_gpu.torch

                cachalot_gpu.torch.dump_snapshot(path)
            else:
                self.torch.cuda.memory._dump_snapshot(path)
            print(json.dumps([time.perf_counter() - begin, os.path.getsize(path)]), flush=True)


class Worker(bench.Worker):
    """One of those processes, as the parent sees it."""

    def __init__(self, way: str, workload: str) -> None:
        recorder = WAYS[way][1]
        super().__init__(way, workload, __file__, {"CACHALOT_RECORDER": recorder} if recorder else {})

    def dumped(self) -> list[str]:
        """Ends the program, and has it write its events."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        if not select.select([self.process.stdout], [], [], DUMP_PATIENCE_S)[0]:
            self.process.kill()
            return [f"more than {DUMP_PATIENCE_S}", ""]
        seconds, size = json.loads(self.process.stdout.readline())
        return [f"{seconds:.3f}", f"{size / MEGABYTE:.1f}"]


def row(workload: str, way: str, workers: dict[str, Worker]) -> list[str]:
    """A row of the table of steps."""
    own, off = workers[way], workers[WAYS[way][0]]
    ours, theirs = bench.timed(own.answers), bench.timed(off.answers)
    block = len(ours) // bench.BLOCKS
    blocks = sorted(statistics.median(ours[start : start + block]) for start in range(0, block * bench.BLOCKS, block))
    steps = sum(len(answer["seconds"]) for answer in own.answers[2:])
    requests = own.answers[-1]["requests"] - own.answers[1]["requests"]
    operations = 2 * requests / steps
    ratio = statistics.median(one / other for one, other in zip(ours, theirs))
    more = (ratio - 1) * statistics.median(theirs) / operations
    cells = [workload, way, f"{operations:,.0f}", f"{statistics.median(ours) * 1e3:.2f}"]
    cells += [f"{blocks[0] * 1e3:.2f}", f"{blocks[-1] * 1e3:.2f}"]
    return cells + ([f"{ratio:.3f}", f"{more * 1e9:.0f}"] if own is not off else ["", ""])


def main() -> None:
    """The tables."""
    out, *names = sys.argv[1:]
    # Compiles the allocator for the installed PyTorch, on all processors.
    build = "import cachalot_gpu.torch; cachalot_gpu.torch.enable()"
    subprocess.run([sys.executable, "-c", build], check=True, timeout=BUILD_PATIENCE_S)
    os.sched_setaffinity(0, bench.quietest())
    rows, dumps = [], []
    for name in names or WORKLOADS:
        workers = {way: Worker(way, name) for way in WAYS}
        for worker in workers.values():
            worker.heard()
        bench.measure(name, workers)
        rows += [row(name, way, workers) for way in WAYS]
        tables.write(Path(out) / "steps.csv", [HEAD, *rows])
        for way, worker in workers.items():
            records = WAYS[way][2] is not None or WAYS[way][1] not in ("", "0")
            if records and name == (names or WORKLOADS)[0]:
                dumps.append([way, *worker.dumped()])
                tables.write(Path(out) / "dumps.csv", [DUMP_HEAD, *dumps])
            worker.process.kill()
            worker.process.wait()
    print(tables.write(Path(out) / "steps.csv", [HEAD, *rows]))
    print(tables.write(Path(out) / "dumps.csv", [DUMP_HEAD, *dumps]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child = Child(sys.argv[2])
        child.listen(sys.argv[3])
        child.dump()
    else:
        main()
