"""Runs programs with less memory of the device than they need, and the rest on the host.

    cc -O1 -shared -fPIC tests/pytorch/managed.c -o tests/pytorch/libmanaged.so -ldl
    python spill.py OUT [--seconds S] [--processes N] [--each S] [--only CANDIDATE,...] [PROGRAM...]

Needs a GPU; `tests/pytorch/run.sh` says how cachalot gets onto the path. OUT gets spill.csv, predicted.csv and
runs.jsonl. What runs.jsonl has is not run again, so that several calls share the work: each starts no process after N,
and none that would take it beyond S seconds. A run ends early after the seconds of `--each`. Each run does the same
steps of `spill_programs.py`. The most memory that the run without a limit holds, divided by 1, 1.05, 1.25, 1.5 and 2,
is the limit of the others. One process does all runs of a program with `spill`, the one without a limit twice: both
must compute the same, and the second counts, because the first loads the kernels. With the defaults this takes about a minute a program. `--only spill,native,expandable,managed`
adds a process for each of the others, which end without memory or take long.

*Predicted*, before any other run: each step takes as long as without a limit, and the time in which the link carries
twice, once written and once read, what the step's peak has beyond the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tables
from spill_programs import steps_of

PROGRAMS = ["gpt2_training", "diffusion_unet", "generate_then_train", "batch_decoding"]
RATIOS = [1.0, 1.05, 1.25, 1.5, 2.0]
# The rate of the link of an H200, in bytes a second, as kernels read and write memory of the host.
LINK = 52e9
GIB = 1 << 30
# What a process takes to start, and what a run takes besides its steps.
START_S, BESIDES_S = 18, 2
ENDS = {"native": "", "expandable": "expandable_segments:True"}
HEAD = ["program", "limit", "limit, GiB", "on the host, GiB", "PyTorch, native", "PyTorch, expandable"]
HEAD += ["fits, mean ms", "fits, longest ms", "spill, mean ms", "spill, longest ms", "×", "predicted, mean ms", "predicted, longest ms"]
HEAD += ["driver's calls for pages, mean ms", "managed, mean ms", "managed, longest ms", "results"]
Run = dict[str, Any]


class Late(Exception):
    """No time, or no process, is left for a run."""


class Runs:
    """The runs so far, in a file, and those that are still to do."""

    def __init__(self, file: Path, seconds: float, processes: int, each: float) -> None:
        self.file, self.end, self.processes, self.each = file, time.monotonic() + seconds, processes, each
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        self.found: dict[tuple[str, str, int], Run] = {self.key(run): run for run in map(json.loads, lines)}

    @staticmethod
    def key(run: Run) -> tuple[str, str, int]:
        """A run is one of a program, by a candidate, with a limit in bytes."""
        return run["program"], run["candidate"], run["limit"]

    def get(self, program: str, candidate: str, limits: list[int], outside: int = 0) -> list[Run]:
        """The runs with these limits, which one process does if they are not there."""
        if missing := [limit for limit in limits if (program, candidate, limit) not in self.found]:
            self.do(program, candidate, missing, outside)
        return [self.found[program, candidate, limit] for limit in limits]

    def first(self, program: str) -> Run:
        """The run without a limit. If it is not there, a process does it and those with `spill`."""
        if (program, "fits", 0) not in self.found:
            # The second run shows that a run does not change what those after it compute.
            self.do(program, "spill", ["0", "0", *(f"/{ratio}" for ratio in RATIOS)], 0)
        return self.found.get((program, "fits", 0), {})

    def do(self, program: str, candidate: str, limits: list[Any], outside: int) -> None:
        """Does runs in a process."""
        patience = START_S + (self.each + BESIDES_S) * len(limits)
        if self.processes == 0 or time.monotonic() + patience > self.end:
            raise Late
        self.processes -= 1
        environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        if config := ENDS.get(candidate):
            environment["PYTORCH_CUDA_ALLOC_CONF"] = config
        script = str(Path(__file__).with_name("spill_programs.py"))
        command = [sys.executable, script, program, candidate, ",".join(map(str, limits)), str(outside), str(self.each)]
        output, reason, begin = "", "", time.monotonic()
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=patience, check=False
            )
            output, reason = done.stdout, (done.stderr.strip().splitlines() or [""])[-1] if done.returncode else ""
        except subprocess.TimeoutExpired as late:
            output = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
            reason = f"not at its end after {patience} s"
        took = time.monotonic() - begin
        runs = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        free = [run for run in runs if run["candidate"] == "fits"]
        if len(free) == 2 and not alike(*free):
            raise SystemExit(f"two runs of {program} differ: {[(run['losses'], run.get('digest')) for run in free]}")
        runs = list({run["limit"]: run for run in runs}.values())
        # Limits that only the process knows are left to the next one, if it ended before them.
        known = {limit for limit in limits if isinstance(limit, int)} or ({0} if not runs else set())
        for limit in known - {run["limit"] for run in runs}:
            runs.append({"limit": limit, "failed": reason or "no output", "candidate": candidate if limit else "fits"})
        with self.file.open("a", encoding="utf-8") as file:
            for run in runs:
                run |= {"program": program}
                self.found[self.key(run)] = run
                file.write(json.dumps(run) + "\n")
        print(f"{program} {candidate} {limits}: {took:.1f} s {reason}", file=sys.stderr, flush=True)


def limits_of(fits: Run) -> list[int]:
    """The limits of a program, whose run without one is given."""
    return [int(fits["held"] / ratio) for ratio in RATIOS]


def predicted(fits: Run, limit: int) -> list[float]:
    """The seconds of each step under a limit."""
    return [took + 2 * max(0, peak - limit) / LINK for took, peak in zip(fits["seconds"], fits["peaks"])]


def timed_of(program: str, seconds: list[float]) -> list[float]:
    """The steps that are timed. Those before load kernels and make pages."""
    return seconds[steps_of(program) // 2 :]


def figures(program: str, seconds: list[float]) -> list[str]:
    """The mean and the longest of the timed steps, in milliseconds."""
    timed = timed_of(program, seconds)
    return [f"{1000 * figure:.1f}" for figure in (statistics.mean(timed), max(timed))] if timed else ["", ""]


def ended(run: Run) -> str:
    """The mean time of a step, or how the run ended."""
    if "failed" in run:
        return str(run["failed"])
    return "out of memory" if "out of memory" in run else figures(run["program"], run["seconds"])[0]


def times(run: Run) -> list[str]:
    """The times of a run, or how it ended."""
    if not run:
        return ["", ""]
    if "failed" in run or "out of memory" in run:
        return [ended(run), ""]
    found, steps = figures(run["program"], run["seconds"]), steps_of(run["program"])
    return found if len(run["seconds"]) == steps else [f"{len(run['seconds'])} of {steps} steps", found[1]]


def on_the_host(run: Run) -> int:
    """The most bytes that lay on the host: at the end of a step, or what was held beyond the limit, which then is used up."""
    return max(run["spilled"], run["held"] - run["limit"])


def alike(one: Run, other: Run) -> bool:
    """Whether two runs computed the same, as far as both came: the losses, and the weights at the end."""
    steps = min(len(one["losses"]), len(other["losses"]))
    digests = {run.get("digest") for run in (one, other)} - {None}
    return steps > 0 and one["losses"][:steps] == other["losses"][:steps] and len(digests) < 2


def row(get: Callable[..., list[Run]], fits: Run, ratio: float, limit: int) -> list[str]:
    """A row of the table, with what is known so far."""
    known = lambda candidate: next(iter(get(fits["program"], candidate, [limit], fits["outside"])), {})  # noqa: E731
    cells = [fits["program"], f"1 / {ratio}", f"{limit / GIB:.2f}"]
    spill, managed = known("spill"), known("managed")
    cells.append(f"{on_the_host(spill) / GIB:.2f}" if "spilled" in spill else "")
    cells += [ended(run) if (run := known(candidate)) else "" for candidate in ENDS]
    program = fits["program"]
    cells += figures(program, fits["seconds"]) + times(spill)
    whole = len(spill.get("seconds", [])) == steps_of(program)
    mean = lambda run: statistics.mean(timed_of(program, run["seconds"]))  # noqa: E731
    cells.append(f"{mean(spill) / mean(fits):.2f}" if whole else "")
    cells += figures(program, predicted(fits, limit))
    cells += figures(program, spill.get("driver_s", []))[:1] + times(managed)
    done = [(name, run) for name, run in [("spill", spill), ("managed", managed)] if times(run)[1]]
    return [*cells, ", ".join(f"{name} {'equal' if alike(run, fits) else 'differ'}" for name, run in done)]


def write(out: Path, runs: Runs, programs: list[str]) -> str:
    """Writes the tables of what is known."""
    known = lambda program, candidate, limits, _=0: [  # noqa: E731
        run for limit in limits if (run := runs.found.get((program, candidate, limit)))
    ]
    fitting = [run for program in programs for run in known(program, "fits", [0]) if "held" in run]
    places = [(fits, ratio, limit) for fits in fitting for ratio, limit in zip(RATIOS, limits_of(fits))]
    rows = [
        [fits["program"], f"1 / {ratio}", f"{limit / GIB:.2f}", f"{max(0, max(fits['peaks']) - limit) / GIB:.2f}"]
        + figures(fits["program"], predicted(fits, limit))
        for fits, ratio, limit in places
    ]
    head = ["program", "limit", "limit, GiB", "beyond it at the peak, GiB", "mean ms", "longest ms"]
    tables.write(out / "predicted.csv", [head, *rows])
    return tables.write(out / "spill.csv", [HEAD, *(row(known, *place) for place in places)])


def main() -> None:
    """The tables, as far as the time reaches."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--processes", type=int, default=-1)
    parser.add_argument("--each", type=float, default=6)
    parser.add_argument("--only", default="spill")
    parser.add_argument("programs", nargs="*", default=PROGRAMS)
    options = parser.parse_intermixed_args()
    options.out.mkdir(parents=True, exist_ok=True)
    runs = Runs(options.out / "runs.jsonl", options.seconds, options.processes, options.each)
    try:
        for program in options.programs:
            fits = runs.first(program)
            write(options.out, runs, options.programs)
            if "held" not in fits:
                continue
            limits = limits_of(fits)
            for candidate in options.only.split(","):
                runs.get(program, candidate, limits, fits["outside"])
                write(options.out, runs, options.programs)
    except Late:
        print("the time or the processes of this call are over: call again", file=sys.stderr)
    print(write(options.out, runs, options.programs))


if __name__ == "__main__":
    main()
