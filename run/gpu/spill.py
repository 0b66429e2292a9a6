"""Runs unchanged programs with two thirds of the memory that they need, and the rest on the host (`cachalot run --spill`).

    python3 run/gpu/spill.py OUT --command COMMAND [--only NAME,...]

COMMAND is the built `cachalot`. Needs a GPU and nvcc; programs whose library is missing are left out with one line. Each
program runs plain, then served without a limit, whose ledger says what the program needs. The limit is what contexts and
code take, and two thirds of the memory that served. With it, the program runs without `--spill`, and with it. OUT gets
`spill_run.csv` and the output of each run.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from compare import PROGRAMS, Program, built

RATIO = 1.5
MIB = 1 << 20
PAGES = "expandable_segments:True"
HEAD = ["program", "served, MiB", "limit of that, MiB", "without `--spill`", "with `--spill`", "on the host, MiB"]
HEAD += ["plain, s", "fits, s", "with `--spill`, s"]


@dataclass
class Ended:
    """How a run ended: its status, what it printed, its seconds, and the most bytes of its books by kind."""

    status: int
    printed: bytes
    errors: str
    seconds: float
    peaks: dict[str, int]

    def of(self, *kinds: str) -> int:
        """The most bytes of some kinds."""
        return sum(self.peaks.get(kind, 0) for kind in kinds)


def programs(out: Path) -> list[Program]:
    """The programs of the table."""
    script = lambda name, *rest: [sys.executable, str(PROGRAMS / name), *rest]  # noqa: E731
    flags = {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"}
    jax = flags | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}
    return [
        Program("nvcc", [built(out, "holds.cu", "-cudart=static")]),
        Program("JAX, jitted", script("jax_steps.py", "jit", "12", "4096"), "jax", jax),
        Program("JAX, op by op", script("jax_steps.py", "ops", "12", "4096"), "jax", jax),
        Program("PyTorch", script("torch_steps.py", "eager"), "torch"),
    ]


def run(out: Path, program: Program, way: str, prefix: list[str]) -> Ended:
    """Runs a program behind the words of a command."""
    slug = "".join(letter if letter.isalnum() else "_" for letter in f"{program.name} {way}")
    ledger = out / f"{slug}.json"
    words = [*prefix, "--ledger-file", str(ledger), "--"] if prefix else []
    begin = time.monotonic()
    try:
        done = subprocess.run(
            words + program.command,
            env=os.environ | program.environment,
            capture_output=True,
            timeout=program.seconds,
            check=False,
        )
        status, printed, errors = done.returncode, done.stdout, done.stderr.decode(errors="replace")
    except subprocess.TimeoutExpired as late:
        status, printed, errors = 124, late.stdout or b"", "late"
    seconds = time.monotonic() - begin
    (out / f"{slug}.txt").write_bytes(printed + b"\n== errors\n" + errors[-20000:].encode())
    peaks: dict[str, int] = {}
    books = json.loads(ledger.read_text())["books"] if ledger.exists() else []
    for kind in [kind for book in books for each in book["objects"] for kind in each["kinds"]]:
        peaks[kind["kind"]] = peaks.get(kind["kind"], 0) + kind["peak"]
    return Ended(status, printed, errors, seconds, peaks)


def row(out: Path, command: str, program: Program) -> list[str]:
    """A row of the table."""
    plain = run(out, program, "plain", [])
    fits = run(out, program, "fits", [command, "run", "--config", PAGES])
    served = fits.of("segment", "pages")
    of_limit = int(served / RATIO)
    limit = of_limit + fits.of("context", "module", "graph", "other", "array", "plain", "pool")
    without = run(out, program, "limit", [command, "run", "--config", PAGES, "--limit", str(limit)])
    spill = run(out, program, "spill", [command, "run", "--spill", "auto", "--limit", str(limit)])
    same = lambda ended: (ended.status, ended.printed) == (plain.status, plain.printed)  # noqa: E731
    refused = "fits" if same(without) else f"status {without.status}"
    if any(word in without.errors.lower() for word in ("out of memory", "out_of_memory", "do not fit", "resource_exhausted")):
        refused += ", out of memory"
    told = "equal" if same(spill) else f"DIFFERS, status {spill.status}"
    cells = [program.name, f"{served / MIB:.0f}", f"{of_limit / MIB:.0f}", refused, told]
    cells.append(f"{spill.of('spilled') / MIB:.0f}")
    return [*cells, *(f"{ended.seconds:.2f}" for ended in (plain, fits, spill))]


def main() -> int:
    """The table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--command", required=True)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    out: Path = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    command = str(Path(asked.command).resolve())
    rows = [HEAD]
    for program in programs(out):
        if asked.only and not any(name in program.name for name in asked.only.split(",")):
            continue
        needs = program.needs
        if needs and subprocess.run([sys.executable, "-c", f"import {needs}"], check=False, capture_output=True).returncode:
            print(f"left out: {program.name}: no {needs}", file=sys.stderr)
            continue
        rows.append(row(out, command, program))
        print(rows[-1], flush=True)
        with (out / "spill_run.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    return int(any("DIFFERS" in cell for each in rows for cell in each))


if __name__ == "__main__":
    sys.exit(main())
