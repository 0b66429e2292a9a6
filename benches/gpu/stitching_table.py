"""Makes the tables of tests/results/stitching_gpu.md from what benches/gpu/stitching.sh left in a folder.

    python3 stitching_table.py OUT
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

HOW_RECORDED = """\
Programs recorded in PyTorch's default configuration, replayed {passes} times with real memory, each on an allocator \
of its own. Memory is freed where the program freed it, recorded `empty_cache` calls are left out, graphs use the \
default pool, and the start of each block is written after the request. *utilisation*: peak live requested bytes / \
the most memory that the driver reports as used (`cudaMemGetInfo`, less what was used before the first request), \
over all passes. *reserved*: the same with the allocator's own count. *driver*: microseconds an allocation in \
requests and frees that took more than 1 µs, with cudaMallocAsync in all of them, with PyTorch, which is called from \
Python, in those of more than 10 µs. *first*, *later*: in the first pass, and in the others. *all calls*: \
nanoseconds of a call, two readings of the clock included, in the later passes. *longest*: the longest call of the \
first pass and of the later ones, and the size of its request. *moved*: all passes together. Utilisation is the \
geometric mean over the programs in the first table.
"""

HOW_NO_WAIT = """\
A kernel of 80 ms writes to live blocks of one stream. Meanwhile other streams request blocks that no hole can hold, \
use them and free some; the busy stream's free pages move, too. `cachalot_maintain` is called with 200 µs every few \
steps. The program is `benches/gpu/no_wait.cu`.
"""

HOW_STRESS = """\
Kernels write every block after the request and check it before the free, while pages move.
"""

HOW_PYTORCH = """\
`tests/pytorch/bench.py`; "swap" is `cachalot_gpu.torch.enable()` with the policy. `=` says that the loss after every \
turn is the same as under PyTorch's allocator to the last digit.
"""


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


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def title(allocator: str) -> str:
    """The name of an allocator in the tables."""
    return f"cachalot, `{allocator}`" if allocator.startswith("policy:") else allocator


def recorded(path: Path) -> str:
    """The tables of the recorded programs."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    if not lines:
        return "Not run.\n"
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
    summary = table(["allocator", "programs", "utilisation", "worst", "of", "reserved", *costs], rows)
    rows = []
    for program in programs:
        for allocator in allocators:
            if of := runs.get((program, allocator)):
                most = max(int(line["driver_bytes"]) for line in of)
                cells = [program, title(allocator), of[0]["requests"], f"{int(of[0]['live_bytes']) / MIB:,.1f}"]
                cells += [f"{most / MIB:,.1f}", f"{utilisation(of, 'driver_bytes'):.4f}"]
                cells += [f"{utilisation(of, 'own_bytes'):.4f}", f"{int(of[-1]['moved_bytes']) / MIB:,.0f}"]
                rows.append(cells + times(of))
    head = ["program", "allocator", "allocations", "live MiB", "driver MiB", "utilisation", "reserved", "moved MiB"]
    passes = max(int(line["pass"]) for line in lines)
    how = HOW_RECORDED.format(passes=passes)
    return f"{how}\n{summary}\n### By program\n\n{table([*head, *costs], rows)}"


def text(path: Path) -> str:
    """The output of a step."""
    return path.read_text(encoding="utf-8").strip() + "\n" if path.exists() and path.stat().st_size else "Not run.\n"


def main() -> None:
    """Writes the file."""
    out = Path(sys.argv[1])
    gpu, host, date, commit, nvcc, torch = [*text(out / "machine.txt").splitlines(), *[""] * 6][:6]
    parts = [
        "# The stitched policy on a GPU\n",
        f"* GPU: {gpu.replace(', ', ', driver ')}; host: {host}\n"
        f"* date: {date}; commit: {commit}; nvcc {nvcc}, PyTorch {torch}\n"
        "* how: `benches/gpu/stitching.sh OUT SITE`\n",
        "## Recorded programs\n",
        recorded(out / "recorded.csv") if (out / "recorded.csv").exists() else "Not run.\n",
        f"## While a kernel runs\n\n{HOW_NO_WAIT}",
        text(out / "no_wait.md"),
        f"## Stress\n\n{HOW_STRESS}",
        f"```\n{text(out / 'stress.txt')}```\n",
        f"## PyTorch's programs\n\n{HOW_PYTORCH}",
        text(out / "pytorch.md"),
    ]
    (out / "stitching_gpu.md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
