"""Runs other projects' programs plain and served by `cachalot run`, and compares what they say.

    python3 run/gpu/suites.py OUT --command COMMAND --programs FOLDER [--ways plain,served,stitched] [--limit SECONDS]

FOLDER holds programs that the user has built, such as those of the CUDA samples, HAMi-core's tests of memory, or
lupine's tests of driver semantics: FOLDER/PROJECT/PROGRAM, or FOLDER/PROJECT/PROGRAM/PROGRAM beside files that the
program opens. COMMAND is the built `cachalot`. Needs a GPU. Every program runs once in each way, without arguments, in
its own working directory that holds a copy of those files, for at most 30 seconds (`--seconds`).

OUT gets `suites.csv` with one row for each program and way, and `suites.txt` with the differences and the end of what
a program wrote that fails or differs. *status* is the exit status, minus the signal's number, `late`, or `no start`. *equal*:

* `yes`: the status is that of the plain run, and so is every byte of both outputs.
* `figures only`: the outputs are equal once what `FIGURES` lists is replaced: times, rates, addresses and the like.
* `order only`: the same lines came in another order, as from several processes or threads.
* `varies`: the status is that of the plain run, and plain runs (up to three more) differ among themselves, too.
* `fails plain`: the plain run fails, and this run fails with the same status.
* `NO`: everything else. The script then exits with 1.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
UNITS = r"(?:[num\u00b5]?s|m?secs?|(?:milli|micro|nano)?seconds?|usecs?|nsecs?)"
RATES = r"(?:[KMGT]i?[Bb](?:ytes|its)?|[KMGT]?(?:FLOPS?|Flops?|flops?|Ops|elements|iterations|bytes))"

# What may differ between two runs of a program, and the text that takes its place. The first entries see whole lines.
FIGURES = [
    # Lines about durations and speeds whose numbers have no unit.
    (r"(?i)^(?=.*\b(?:time|times|elapsed|took|latency|latencies|speed-?up|bandwidth|throughput|clocks|cycles)\b).*\d.*$", None),
    # simpleStreams and other samples: a name, a colon, tabs and milliseconds.
    (rf"^((?:memcopy|kernel|non-streamed|\d+ streams):\s+){NUMBER}$", r"\1TIME"),
    # How far the host got while the GPU worked.
    (r"\bexecuted \d+ iterations while waiting\b", "executed COUNT iterations while waiting"),
    # The memory of the card in use, by the management library. The allocator keeps freed memory, so that differs.
    (r"\bCurrent usage: \d+ bytes, diff: -?\d+ bytes\b", "Current usage: USE"),
    # Addresses and handles.
    (r"\b0[xX][0-9a-fA-F]+\b", "ADDRESS"),
    (r"\b(?=[0-9a-f]*[a-f])[0-9a-f]{12,16}\b", "ADDRESS"),
    # Processes and threads.
    (r"(?i)\b(pid|tid|process id)(\W{1,3})\d+\b", r"\1\2ID"),
    # A number with a unit of time or with a rate, in either order, and shares of a hundred.
    (rf"(?<![\w.]){NUMBER}\s*\(?{UNITS}\b\)?", "TIME"),
    (rf"(\((?:{UNITS})\)\W*){NUMBER}", r"\1TIME"),
    (rf"(?<![\w.]){NUMBER}\s*{RATES}/s(?:ec)?\b", "RATE"),
    (rf"(\({RATES}/s(?:ec)?\)\W*){NUMBER}", r"\1RATE"),
    (rf"(?<![\w.]){NUMBER}\s*\[?[KMGT]?(?:FLOPS?|Flops?)\b", "RATE"),
    (rf"(?<![\w.]){NUMBER}\s*%", "SHARE"),
]
COMPILED = [(re.compile(pattern), text) for pattern, text in FIGURES]
NO_START = "no start"
EXTRA_PLAIN_RUNS = 3
KEPT = 6000


@dataclass(frozen=True)
class Program:
    """A program: its project and name, its file, and the folder of files that it opens."""

    name: str
    file: Path
    data: Path | None


@dataclass(frozen=True)
class Ended:
    """The results of a run."""

    status: str
    printed: str
    errors: str
    seconds: float

    def exact(self) -> tuple[str, str, str]:
        """Returns what equal runs have in common."""
        return self.status, self.printed, self.errors

    def figureless(self) -> tuple[str, list[str], list[str]]:
        """Returns the same with figures replaced, by lines."""
        return self.status, lines_without_figures(self.printed), lines_without_figures(self.errors)

    def unordered(self) -> tuple[str, list[str], list[str]]:
        """Returns the same with lines sorted."""
        status, printed, errors = self.figureless()
        return status, sorted(printed), sorted(errors)

    def failed(self) -> bool:
        """Returns whether the program reports a failure."""
        return self.status != "0"


def lines_without_figures(text: str) -> list[str]:
    """Returns the lines of a text with what `FIGURES` lists replaced, and runs of spaces made one."""
    lines = []
    for line in text.splitlines():
        for pattern, replacement in COMPILED:
            if replacement is not None:
                line = pattern.sub(replacement, line)
            elif pattern.search(line):
                line = re.sub(NUMBER, "FIGURE", line)
        # Columns shift with the width of their numbers.
        lines.append(re.sub(r"\s+", " ", line).strip())
    return lines


def found(folder: Path) -> Iterator[Program]:
    """Yields the programs of a folder of projects, sorted by name."""
    for project in sorted(path for path in folder.iterdir() if path.is_dir()):
        for path in sorted(project.iterdir()):
            name = f"{project.name}/{path.name}"
            inner = path / path.name
            if path.is_dir() and inner.is_file() and os.access(inner, os.X_OK):
                yield Program(name, inner, path)
            elif path.is_file() and os.access(path, os.X_OK) and ".so" not in path.suffixes:
                yield Program(name, path, None)


def run(program: Program, prefix: list[str], place: Path, seconds: float) -> Ended:
    """Runs a program in a fresh folder `place`, and ends it with its children after `seconds`."""
    shutil.rmtree(place, ignore_errors=True)
    if program.data:
        shutil.copytree(program.data, place, ignore=shutil.ignore_patterns(program.file.name))
    else:
        place.mkdir(parents=True)
    begin = time.monotonic()
    # Files and not pipes: a child that outlives the program would keep a pipe open.
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
        try:
            started = subprocess.Popen(
                [*prefix, str(program.file)],
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            return Ended(NO_START, "", str(error), 0)
        try:
            status = str(started.wait(timeout=seconds))
        except subprocess.TimeoutExpired:
            status = "late"
        took = time.monotonic() - begin
        end_group(started.pid)
        started.wait()
        return Ended(status, text_of(printed), text_of(errors), took)


def text_of(file: IO[bytes]) -> str:
    """Returns what was written to a file, as text."""
    file.seek(0)
    return file.read().decode(errors="backslashreplace")


def end_group(leader: int) -> None:
    """Kills what is left of a process group: children outlive a parent that fails."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def verdict(plain: list[Ended], ended: Ended) -> str:
    """Compares a run with plain runs of the same program, and returns a word of the table, or `NO`."""
    first = plain[0]
    if first.failed() and ended.status == first.status:
        return "fails plain"
    if any(ended.exact() == other.exact() for other in plain):
        return "yes"
    if any(ended.figureless() == other.figureless() for other in plain):
        return "figures only"
    if any(ended.unordered() == other.unordered() for other in plain):
        return "order only"
    if ended.status == first.status and any(other.unordered() != first.unordered() for other in plain[1:]):
        return "varies"
    return "NO"


def difference(plain: Ended, ended: Ended) -> str:
    """Returns how two runs differ apart from figures, for a person to read."""
    _, plain_printed, plain_errors = plain.figureless()
    _, printed, errors = ended.figureless()
    lines = difflib.unified_diff(plain_printed + plain_errors, printed + errors, "plain", "this way", lineterm="", n=1)
    return "\n".join(lines)[:KEPT]


def main() -> int:
    """Runs all programs and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--command", type=Path, required=True)
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--ways", default="plain,served", help="plain, served, observed, stitched, sync-free; plain is always run")
    parser.add_argument("--only", default="", help="run programs whose name has one of these parts")
    parser.add_argument("--seconds", type=float, default=30, help="of one run")
    parser.add_argument("--limit", type=float, default=500, help="of all runs, in seconds")
    asked = parser.parse_args()
    end = time.monotonic() + asked.limit
    serve = [str(asked.command.resolve()), "run"]
    ways = {
        "served": [*serve, "--"],
        "observed": [*serve, "--observe", "--"],
        "stitched": [*serve, "--settings", "policy:stitched", "--"],
        "sync-free": [*serve, "--sync-free", "--"],
    }
    wanted = [way for way in asked.ways.split(",") if way != "plain"]
    if unknown := [way for way in wanted if way not in ways]:
        parser.error(f"no such way: {', '.join(unknown)}")
    programs = list(found(asked.programs.resolve()))
    if not programs:
        parser.error(f"{asked.programs}: no program")
    only = [part for part in asked.only.split(",") if part]
    programs = [program for program in programs if not only or any(part in program.name for part in only)]
    out: Path = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    # A program that aborts would leave the image of its memory.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tally: Counter[tuple[str, str, str]] = Counter()
    with (out / "suites.csv").open("w", newline="") as file, (out / "suites.txt").open("w") as notes:
        table = csv.writer(file)
        table.writerow(["program", "way", "status", "equal", "seconds"])

        def write(program: Program, way: str, ended: Ended, equal: str) -> None:
            table.writerow([program.name, way, ended.status, equal, f"{ended.seconds:.2f}"])
            file.flush()
            tally[program.name.split("/")[0], way, equal] += 1
            print(f"{program.name:48} {way:9} {ended.status:>4} {equal:12} {ended.seconds:6.1f} s", flush=True)
            if equal in ("NO", "fails plain"):
                notes.write(f"== {program.name}, {way}: {equal}, status {ended.status}\n")
                notes.write(f"{ended.printed[-KEPT:]}\n-- errors\n{ended.errors[-KEPT:]}\n")
                notes.flush()

        for program in programs:
            # All ways share a path, which some programs print.
            place = out / "work" / program.name
            if end - time.monotonic() < 2:
                print(f"left out: {program.name}: no time", file=sys.stderr)
                continue
            plain = [run(program, [], place, min(asked.seconds, end - time.monotonic()))]
            write(program, "plain", plain[0], "fails plain" if plain[0].failed() else "yes")
            for way in wanted if plain[0].status != NO_START else []:
                left = end - time.monotonic()
                if left < 2:
                    print(f"left out: {program.name}, {way}: no time", file=sys.stderr)
                    continue
                ended = run(program, ways[way], place, min(asked.seconds, left))
                equal = verdict(plain, ended)
                # A program may differ from itself.
                while equal == "NO" and ended.status == plain[0].status and len(plain) <= EXTRA_PLAIN_RUNS and end - time.monotonic() > 2:
                    plain.append(run(program, [], place, min(asked.seconds, end - time.monotonic())))
                    equal = verdict(plain, ended)
                write(program, way, ended, equal)
                if equal in ("NO", "varies", "order only"):
                    notes.write(f"== {program.name}, {way}: {equal}\n{difference(plain[0], ended)}\n")
    shutil.rmtree(out / "work", ignore_errors=True)
    for (project, way, equal), count in sorted(tally.items()):
        print(f"{project:24} {way:9} {equal:12} {count:4}")
    return 1 if any(equal == "NO" for _, _, equal in tally) else 0


if __name__ == "__main__":
    sys.exit(main())
