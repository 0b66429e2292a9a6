"""Makes tests/results/pinned.md from what benches/gpu/pinned.sh left in a folder.

    python3 pinned_table.py OUT
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

HEAD = """\
# Pinned memory of the host

* GPU: {gpu}; host: {host}; huge pages: `{huge}`
* date: {date}; commit: {commit}
* how: `cargo build --release -p cachalot-library` and `benches/gpu/pinned.sh OUT`

An allocator with `CACHALOT_HOST` beside the driver's own `cuMemHostAlloc`, which is `cudaHostAlloc`. The median of {rounds} \
rounds in turns, each in a process of its own, and the lowest and highest.

| | cachalot | `cuMemHostAlloc` | cachalot ÷ `cuMemHostAlloc` | wanted |
| --- | --- | --- | --- | --- |
"""

PROGRAMS = """
*pinned ÷ asked*: the most pinned memory over the most bytes in use, for programs of 1000 steps with 8 GiB of key-value cache, \
described in `benches/gpu/pinned.cpp`. *powers of two*: the same for an allocator that rounds each request up to a power of two \
and reuses blocks of equal size, which is the rule of PyTorch's allocator.

| program | asked, MiB | pinned ÷ asked | powers of two | requests | segments obtained | given back | µs of a request | longest, ms |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def shown(values: list[float]) -> str:
    """A median, and the lowest and highest."""
    return f"{statistics.median(values):.4g} ({min(values):.4g}–{max(values):.4g})"


def main(folder: Path) -> None:
    """Writes the table into the folder."""
    runs: dict[tuple[str, str], list[list[str]]] = {}
    for line in (folder / "pinned.txt").read_text().splitlines():
        what, name, *figures = line.split(";")
        runs.setdefault((what, name), []).append(figures)

    def column(what: str, name: str, at: int) -> list[float]:
        return [float(figures[at]) for figures in runs[what, name]]

    gpu, host, date, commit, huge = (folder / "machine.txt").read_text().splitlines()[:5]
    rounds = len(runs["behind", "cachalot"])
    text = HEAD.format(gpu=gpu.replace(", ", ", driver "), host=host, huge=huge, date=date, commit=commit, rounds=rounds)
    rows = [
        ("16 GiB ready, s", "ready", 0, "≤ 0.2"),
        ("16 GiB given back, s", "ready", 1, ""),
        ("copies to the device, MiB/s", "copy", 0, "0.99–1.01"),
        ("copies to the host, MiB/s", "copy", 1, "0.99–1.01"),
    ]
    for title, what, at, wanted in rows:
        ours, theirs = column(what, "cachalot", at), column(what, "cuMemHostAlloc", at)
        ratio = statistics.median(our / their for our, their in zip(ours, theirs))
        text += f"| {title} | {shown(ours)} | {shown(theirs)} | {ratio:.3f} | {wanted} |\n"
    sizes = {figures[0] for figures in runs["pair", "cachalot"]}
    for size in sorted(sizes, key=int):
        times = [float(figures[1]) for figures in runs["pair", "cachalot"] if figures[0] == size]
        text += f"| request and free of {int(size) // 1024} KiB, ns | {shown(times)} | | | ≤ 60 |\n"
    for title, at in [("64 MiB given back, the GPU idle, ms", 0), ("64 MiB given back beside 100 ms of work, ms", 1)]:
        text += f"| {title} | {shown(column('behind', 'cachalot', at))} | | | |\n"
    text += PROGRAMS
    for (what, name), figures in runs.items():
        if what == "trace":
            text += f"| {name} | {' | '.join(figures[0])} |\n"
    (folder / "pinned.md").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
