"""Makes the tables of tests/results/pinned.md from what benches/gpu/pinned.sh left in a folder.

    python3 pinned_table.py OUT

OUT gets head.csv, pinned.csv and programs.csv, for tests/results/pinned/.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

def write(out: Path, name: str, rows: Iterable[Iterable[object]]) -> None:
    """Writes a table as CSV. The first row has the titles."""
    with (out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def ranged(values: list[float]) -> list[str]:
    """A median, and the lowest and highest."""
    return [f"{figure:.4g}" for figure in (statistics.median(values), min(values), max(values))]


def main(folder: Path) -> None:
    """Writes the tables into the folder."""
    runs: dict[tuple[str, str], list[list[str]]] = {}
    for line in (folder / "pinned.txt").read_text().splitlines():
        what, name, *figures = line.split(";")
        runs.setdefault((what, name), []).append(figures)

    def column(what: str, name: str, at: int) -> list[float]:
        return [float(figures[at]) for figures in runs[what, name]]

    gpu, host, date, commit, huge = (folder / "machine.txt").read_text().splitlines()[:5]
    head = [("what", "is"), ("GPU", gpu.replace(", ", ", driver ")), ("host", f"{host}; huge pages: `{huge}`"), ("date", date)]
    head += [("commit", commit), ("how", "`cargo build --release -p cachalot-library` and `benches/gpu/pinned.sh OUT`")]
    write(folder, "head", head)
    theirs_ = "`cuMemHostAlloc`"
    columns = [f"{name}{end}" for name in ("cachalot", theirs_) for end in ("", " from", " to")]
    rows = [["", *columns, f"cachalot ÷ {theirs_}", "wanted"]]
    figures_of = [
        ("16 GiB ready, s", "ready", 0, "≤ 0.2"),
        ("16 GiB given back, s", "ready", 1, ""),
        ("copies to the device, MiB/s", "copy", 0, "0.99–1.01"),
        ("copies to the host, MiB/s", "copy", 1, "0.99–1.01"),
    ]
    for title, what, at, wanted in figures_of:
        ours, theirs = column(what, "cachalot", at), column(what, "cuMemHostAlloc", at)
        ratio = statistics.median(our / their for our, their in zip(ours, theirs))
        rows.append([title, *ranged(ours), *ranged(theirs), f"{ratio:.3f}", wanted])
    sizes = {figures[0] for figures in runs["pair", "cachalot"]}
    for size in sorted(sizes, key=int):
        times = [float(figures[1]) for figures in runs["pair", "cachalot"] if figures[0] == size]
        rows.append([f"request and free of {int(size) // 1024} KiB, ns", *ranged(times), *[""] * 4, "≤ 60"])
    for title, at in [("64 MiB given back, the GPU idle, ms", 0), ("64 MiB given back beside 100 ms of work, ms", 1)]:
        rows.append([title, *ranged(column("behind", "cachalot", at)), *[""] * 5])
    write(folder, "pinned", rows)
    titles = ["program", "asked, MiB", "pinned ÷ asked", "powers of two", "requests", "segments obtained", "given back"]
    titles += ["µs of a request", "longest, ms"]
    programs = [[name, *figures[0]] for (what, name), figures in runs.items() if what == "trace"]
    write(folder, "programs", [titles, *programs])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
