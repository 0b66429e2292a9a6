#!/usr/bin/env python3
"""Times four programs of PyTorch in every mode that looks for memory errors: a table as CSV.

    tests/guards/slow.py OUT.csv [--sanitizer COMPUTE-SANITIZER] [--longest SECONDS] [--only MODE;MODE]
        [WORKLOAD...]

The programs and the processes in turns are those of tests/pytorch/bench.py. "× time" is the median, over every step, of what
the step took in the mode over what the same step took without a mode; "steps/s" is the median of the blocks, with the lowest
and the highest; "requests" are those of a step; "µs more" is what a request takes more than without a mode. All modes of a
program that fit the GPU take turns together, else in groups, each with its own process without a mode. With --sanitizer, the
first program runs under memcheck as well, by itself. Ends with status 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pytorch"))
import bench  # noqa: E402
import tables  # noqa: E402

NONE = "no mode"
MODES = {
    NONE: "policy:caching,nvtx:off",
    "`nvtx:auto`, no tool": "policy:caching,nvtx:auto",
    "`guard:sampled:1000`": "policy:caching,nvtx:off,guard:sampled:1000",
    "`guard:all`": "policy:caching,nvtx:off,guard:all",
    "`canary:True`": "policy:caching,nvtx:off,canary:True",
    "`zero:on_free`": "policy:caching,nvtx:off,zero:on_free",
}
UNDER_MEMCHECK = "memcheck, `nvtx:auto`"
GOALS = {("gpt2_training", "`guard:all`"): 1.13, ("gpt2_training", "`guard:sampled:1000`"): 1.02}
TOGETHER = {"gpt2_training": 1}
"""The modes that take turns at once, where not all fit: each process of this program holds 16 to 22 GiB, and under `guard:all` as much
as the GPU has, since a page serves blocks of its own size only."""
BLOCKS, TURNS_OF_A_BLOCK, TURN_SECONDS, WARM_UP_STEPS = 5, 2, 0.2, 10
START_S = 100
HEAD = ["program", "mode", "steps/s", "steps/s from", "steps/s to", "× time", "requests", "µs more", "reserved, MiB"]


class Worker(bench.Worker):
    """A process of one mode."""

    def __init__(self, mode: str, workload: str, before: tuple[str, ...] = ()) -> None:
        environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        command = [*before, sys.executable, __file__, "--child", mode, workload]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.answers = []

    def told(self, steps: int) -> None:
        """Has it do some steps, and keeps its answer."""
        assert self.process.stdin
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        self.answers.append(self.heard())

    def end(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.communicate()


def measure(workers: dict[str, Worker]) -> int:
    """Has all of them run their program in turns. Returns how many steps each turn had."""
    turns = [WARM_UP_STEPS, WARM_UP_STEPS, *[0] * BLOCKS * TURNS_OF_A_BLOCK]
    order = list(workers.values())
    for number in range(len(turns)):
        order.reverse()
        for worker in order:
            worker.told(turns[number])
        if number == 1:
            pace = statistics.median(workers[NONE].answers[1]["seconds"])
            turns[2:] = [max(2, round(TURN_SECONDS / pace))] * len(turns[2:])
    return turns[-1]


def row(mode: str, worker: Worker, base: Worker) -> tuple[list[str], float]:
    """A row of the table, and the time of the mode over that without a mode."""
    ours, theirs = bench.timed(worker.answers), bench.timed(base.answers)
    block = len(ours) // BLOCKS
    rates = sorted(block / sum(ours[start : start + block]) for start in range(0, len(ours), block))
    slower = statistics.median(own / other for own, other in zip(ours, theirs))
    requests = (worker.answers[-1]["requests"] - worker.answers[1]["requests"]) / len(ours)
    more = statistics.median(own - other for own, other in zip(ours, theirs)) / requests * 1e6
    reserved = bench.peak(worker.answers, "reserved") / bench.MIB
    rate = [f"{rate:.2f}" for rate in (statistics.median(rates), rates[0], rates[-1])]
    return [mode, *rate, f"{slower:.3f}", f"{requests:.0f}", f"{more:.1f}", f"{reserved:.0f}"], slower


def table(workload: str, modes: list[str], out: Path, rows: list[list[str]]) -> list[str]:
    """Adds the rows of a program in some modes. Returns the goals that are missed."""
    missed = []
    size = TOGETHER.get(workload, len(modes))
    for start in range(0, len(modes), size):
        workers = {mode: Worker(mode, workload) for mode in [NONE, *modes[start : start + size]]}
        try:
            for worker in workers.values():
                worker.heard()
            steps = measure(workers)
            for mode, worker in workers.items():
                line, slower = row(mode, worker, workers[NONE])
                rows.append([workload, *line])
                if slower > GOALS.get((workload, mode), float("inf")):
                    missed.append(f"{workload}, {mode}: {slower:.3f} is more than {GOALS[workload, mode]}")
        finally:
            for worker in workers.values():
                worker.end()
    print(f"{workload}: {BLOCKS} blocks of {TURNS_OF_A_BLOCK} turns of {steps} steps, after {2 * WARM_UP_STEPS}.")
    tables.write(out, rows)
    return missed


def under_memcheck(workload: str, sanitizer: str, seconds: float) -> str:
    """A sentence about the program under memcheck: first without the tool, and then under it, for some time."""
    rates = {}
    for name, before in (("without", ()), ("under", (sanitizer, "--tool", "memcheck", "--log-file", os.devnull))):
        worker = Worker(UNDER_MEMCHECK, workload, before)
        try:
            begin = time.monotonic()
            worker.heard()
            started = time.monotonic() - begin
            while len(worker.answers) < 12 and time.monotonic() - begin < seconds:
                worker.told(2)
            steps = [second for answer in worker.answers[1:] for second in answer["seconds"]]
            rates[name] = (len(steps) / sum(steps), len(steps), started)
        except (SystemExit, ZeroDivisionError) as error:
            return f"{workload} under memcheck: not measured ({error})."
        finally:
            worker.end()
    (fast, _, began), (slow, count, took) = rates["without"], rates["under"]
    return (
        f"{workload} under memcheck with `nvtx:auto`: {slow:.3f} steps/s in {count} steps after 2, {fast / slow:.1f} × the time "
        f"without the tool ({fast:.2f} steps/s); {took:.0f} s to the first step, and {began:.0f} s without."
    )


def main() -> int:
    """The tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--sanitizer")
    parser.add_argument("--longest", type=float, default=200)
    parser.add_argument("--only", default=";".join(MODES))
    parser.add_argument("workloads", nargs="*")
    arguments = parser.parse_intermixed_args()
    end = time.monotonic() + arguments.longest
    bench.PATIENCE_S = START_S
    os.sched_setaffinity(0, bench.quietest())
    rows = [HEAD]
    missed: list[str] = []
    names = arguments.workloads or bench.WORKLOADS
    modes = [mode for mode in MODES if mode != NONE and mode in arguments.only.split(";")]
    for name in names:
        if time.monotonic() > end - 30:
            print(f"{name}: not measured, the time was over.")
            continue
        try:
            missed += table(name, modes, arguments.out, rows)
        except SystemExit as error:
            print(f"{name}: not measured to the end: {error}")
            missed.append(f"{name}: {error}")
    if arguments.sanitizer:
        # The tool runs threads of its own.
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        print(under_memcheck(names[0], arguments.sanitizer, 60))
    print(tables.write(arguments.out, rows))
    print("every goal is reached" if not missed else "missed: " + "; ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        bench.ALLOCATORS = {mode: ("", config, "") for mode, config in MODES.items()}
        bench.ALLOCATORS[UNDER_MEMCHECK] = ("", "policy:caching", "")
        bench.Child(sys.argv[2]).listen(sys.argv[3])
    else:
        sys.exit(main())
