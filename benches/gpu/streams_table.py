"""Makes the tables of tests/results/streams.md from what benches/gpu/streams.sh left in a folder.

    python3 streams_table.py OUT

OUT gets head.csv and cycles.csv, for tests/results/streams/.
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


def main(folder: Path) -> None:
    """Writes the tables into the folder."""
    runs: dict[tuple[str, int], list[list[float]]] = {}
    for line in (folder / "streams.txt").read_text().splitlines():
        name, threads, *figures = line.split(";")
        runs.setdefault((name, int(threads)), []).append([float(figure) for figure in figures])
    gpu, host, date, commit, torch = (folder / "machine.txt").read_text().splitlines()[:5]
    head = [("what", "is"), ("GPU", gpu.replace(", ", ", driver ")), ("host", host), ("date", date), ("commit", commit)]
    head += [("PyTorch", torch), ("how", "`cargo build --release -p cachalot-library` and `benches/gpu/streams.sh OUT`")]
    write(folder, "head", head)
    speed = "million cycles a second"
    rows: list[list[object]] = [["allocator", "threads", speed, f"{speed} from", f"{speed} to", "× PyTorch", "half, µs", "99 of 100, µs"]]
    for (name, threads), figures in runs.items():
        speeds, halves, tails = zip(*figures)
        base = statistics.median(figure[0] for figure in runs["PyTorch", threads])
        median = statistics.median(speeds)
        cells = [f"{figure:.3f}" for figure in (median, min(speeds), max(speeds))]
        cells += [f"{median / base:.1f}", f"{statistics.median(halves):.2f}", f"{statistics.median(tails):.2f}"]
        rows.append([name if name == "PyTorch" else f"cachalot, `{name}`", threads, *cells])
    write(folder, "cycles", rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
