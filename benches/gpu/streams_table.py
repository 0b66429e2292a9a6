"""Makes tests/results/streams.md from what benches/gpu/streams.sh left in a folder.

    python3 streams_table.py OUT
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

HEAD = """\
# Blocks that two streams use

* GPU: {gpu}; host: {host}
* date: {date}; commit: {commit}; PyTorch {torch}
* how: `cargo build --release -p cachalot-library` and `benches/gpu/streams.sh OUT`

Each thread obtains a block on its own stream, announces the use by a second stream, and frees the block, {cycles} times, \
with blocks of 4 KiB to 1 MiB. No work is queued. *million cycles a second*: of all threads together, the median of {rounds} \
rounds in turns, and the lowest and highest. *× PyTorch*: the median over PyTorch's. *half*, *99 of 100*: the microseconds \
below which so many cycles stay, median of the rounds.

| allocator | threads | million cycles a second | × PyTorch | half, µs | 99 of 100, µs |
| --- | --- | --- | --- | --- | --- |
"""


def main(folder: Path) -> None:
    """Writes the table into the folder."""
    runs: dict[tuple[str, int], list[list[float]]] = {}
    for line in (folder / "streams.txt").read_text().splitlines():
        name, threads, *figures = line.split(";")
        runs.setdefault((name, int(threads)), []).append([float(figure) for figure in figures])
    gpu, host, date, commit, torch = (folder / "machine.txt").read_text().splitlines()[:5]
    rounds = len(next(iter(runs.values())))
    text = HEAD.format(
        gpu=gpu.replace(", ", ", driver "), host=host, date=date, commit=commit, torch=torch, cycles="20,000", rounds=rounds
    )
    for (name, threads), figures in runs.items():
        speeds, halves, tails = zip(*figures)
        base = statistics.median(figure[0] for figure in runs["PyTorch", threads])
        speed = statistics.median(speeds)
        allocator = name if name == "PyTorch" else f"cachalot, `{name}`"
        text += (
            f"| {allocator} | {threads} | {speed:.3f} ({min(speeds):.3f}–{max(speeds):.3f}) | {speed / base:.1f} "
            f"| {statistics.median(halves):.2f} | {statistics.median(tails):.2f} |\n"
        )
    (folder / "streams.md").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
