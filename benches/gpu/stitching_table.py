"""Makes the tables of tests/results/stitching_gpu.md from what benches/gpu/stitching.sh left in a folder.

    python3 stitching_table.py OUT

OUT gets head.csv, summary.csv and by_program.csv, for tests/results/stitching_gpu/.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable
from pathlib import Path

MIB = 1 << 20
TORCH = "PyTorch"
# The allocators in the order of the tables; others follow.
ORDER = [
    "policy:stitched",
    "policy:caching",
    "policy:caching,expandable_segments:True",
    TORCH,
    f"{TORCH}, expandable_segments:True",
    "cudaMallocAsync",
]
Line = dict[str, str]
Runs = dict[tuple[str, str], list[Line]]


def mean(values: Iterable[float]) -> float:
    """The geometric mean; 0 if a value is 0."""
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if all(value > 0 for value in values) else 0.0


def utilisation(lines: list[Line], column: str) -> float:
    """Peak live bytes of a program over the most memory of all passes."""
    most = max(int(line[column]) for line in lines)
    return int(lines[0]["live_bytes"]) / most if most else 0.0


def total(lines: Iterable[Line], column: str) -> float:
    """The sum of a column."""
    return sum(float(line[column]) for line in lines)


def driver_us(lines: list[Line]) -> str:
    """Microseconds an allocation in calls of the driver."""
    column = "call_us" if lines[:1] and lines[0]["allocator"] == "cudaMallocAsync" else "slow_us"
    requests = total(lines, "requests")
    return f"{total(lines, column) / requests:.3f}" if requests else ""


def call_ns(lines: list[Line]) -> str:
    """Nanoseconds of a call. Every request has a free."""
    requests = total(lines, "requests")
    return f"{total(lines, 'call_us') / requests / 2 * 1000:.0f}" if requests else ""


def size(bytes_: int) -> str:
    """The size of a request, or that the call was a free."""
    if not bytes_:
        return "a free"
    return f"{bytes_ / MIB:,.0f} MiB" if bytes_ >= MIB else f"{math.ceil(bytes_ / 1024)} KiB"


def longest(lines: list[Line]) -> str:
    """The longest call in milliseconds, and what the call was."""
    if not lines:
        return ""
    line = max(lines, key=lambda line: float(line["longest_us"]))
    return f"{float(line['longest_us']) / 1000:.2f} ({size(int(line['longest_bytes']))})"


def times(lines: list[Line]) -> list[str]:
    """The cells that tell the time."""
    first = [line for line in lines if line["pass"] == "1"]
    later = [line for line in lines if line["pass"] != "1"]
    return [driver_us(first), driver_us(later), call_ns(later), longest(first), longest(later)]


def write(out: Path, name: str, table: Iterable[Iterable[object]]) -> None:
    """Writes a table as CSV. The first row has the titles."""
    with (out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(table)


def title(allocator: str) -> str:
    """The name of an allocator in the tables."""
    return f"cachalot, `{allocator}`" if allocator.startswith("policy:") else allocator


def recorded(out: Path) -> None:
    """Writes the tables of the recorded programs."""
    with (out / "recorded.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    if not lines:
        return
    found = list(dict.fromkeys(line["allocator"] for line in lines))
    allocators = [name for name in ORDER if name in found] + [name for name in found if name not in ORDER]
    programs = sorted({line["program"] for line in lines})
    runs: Runs = {}
    for line in lines:
        runs.setdefault((line["program"], line["allocator"]), []).append(line)
    costs = ["driver µs, first", "driver µs, later", "all calls, ns", "longest ms, first", "longest ms, later"]
    rows = []
    for allocator in allocators:
        own = {program: runs[program, allocator] for program in programs if (program, allocator) in runs}
        shares = {program: utilisation(of, "driver_bytes") for program, of in own.items()}
        worst = min(shares, key=lambda program: shares[program])
        figures = [f"{len(own)}", f"{mean(shares.values()):.4f}", f"{shares[worst]:.4f}", worst]
        figures.append(f"{mean(utilisation(of, 'own_bytes') for of in own.values()):.4f}")
        rows.append([title(allocator), *figures, *times([line for of in own.values() for line in of])])
    write(out, "summary", [["allocator", "programs", "utilisation", "worst", "of", "reserved", *costs], *rows])
    rows = []
    for program in programs:
        for allocator in allocators:
            if of := runs.get((program, allocator)):
                most = max(int(line["driver_bytes"]) for line in of)
                cells = [program, title(allocator), of[0]["requests"], f"{int(of[0]['live_bytes']) / MIB:.1f}"]
                cells += [f"{most / MIB:.1f}", f"{utilisation(of, 'driver_bytes'):.4f}"]
                cells += [f"{utilisation(of, 'own_bytes'):.4f}", f"{int(of[-1]['moved_bytes']) / MIB:.0f}"]
                rows.append(cells + times(of))
    head = ["program", "allocator", "allocations", "live MiB", "driver MiB", "utilisation", "reserved", "moved MiB"]
    write(out, "by_program", [[*head, *costs], *rows])


def main() -> None:
    """Writes the tables."""
    out = Path(sys.argv[1])
    machine = (out / "machine.txt").read_text(encoding="utf-8").splitlines()
    gpu, host, date, commit, nvcc, torch = [*machine, *[""] * 6][:6]
    head = [("what", "is"), ("GPU", gpu.replace(", ", ", driver ")), ("host", host), ("date", date)]
    head += [("commit", f"{commit}; nvcc {nvcc}"), ("PyTorch", torch), ("how", "`benches/gpu/stitching.sh OUT SITE`")]
    write(out, "head", head)
    if (out / "recorded.csv").exists():
        recorded(out)


if __name__ == "__main__":
    main()
