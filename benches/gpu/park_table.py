"""Makes the tables of tests/results/park.md from what benches/gpu/park.sh left in a folder.

    python3 park_table.py OUT

OUT gets head.csv, parking.csv and busy.csv, for tests/results/park/.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

GIB, MIB = 1 << 30, 1 << 20
PLAIN = "plain pinned copy"
Line = dict[str, Any]

def write(out: Path, name: str, rows: Iterable[Iterable[object]]) -> None:
    """Writes a table as CSV. The first row has the titles."""
    with (out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def median(lines: Iterable[Line], key: str) -> float | None:
    """The median of a figure that the lines have."""
    values = [line[key] for line in lines if key in line]
    return statistics.median(values) if values else None


def text(value: float | None, form: str = ".1f") -> str:
    """A figure, or nothing."""
    return "" if value is None else format(value, form)


def ratio(part: float | None, whole: float | None) -> float | None:
    """A quotient, if there is one."""
    return part / whole if part is not None and whole else None


class Figures:
    """The measurements of one allocator."""

    def __init__(self, lines: list[Line]) -> None:
        self.parts: dict[str, list[Line]] = {}
        for line in lines:
            self.parts.setdefault(line["part"], []).append(line)

    def one(self, part: str) -> Line:
        """The line of a part, empty if it did not run."""
        return self.parts.get(part, [{}])[-1]

    def rate(self, part: str, key: str) -> float | None:
        """GiB of weights a second."""
        return ratio(self.one("load").get("weights", 0) / GIB, median(self.parts.get(part, []), key))

    def drop(self) -> str:
        """Milliseconds for each GiB of cache, to park and to wake."""
        gib = self.one("load").get("cache", 0) / GIB
        each = [ratio(median(self.parts.get("warm", []), f"{way} kv_cache"), gib) for way in ("park", "wake")]
        return " / ".join(text(1000 * seconds, ".2f") for seconds in each if seconds is not None)

    def all_of(self, key: str) -> list[float]:
        """A figure of all parts that have one."""
        return [line[key] for lines in self.parts.values() for line in lines if key in line]

    def row(self, plain: Figures | None) -> list[str]:
        """The cells of the first table."""
        rates = [self.rate(part, way) for part in ("cold", "warm") for way in ("park", "wake")]
        others = [plain.rate("warm", way) if plain else None for way in ("park", "wake")]
        shares = [ratio(own, other) for own, other in zip(rates[2:], others)]
        cold, lefts, graphs = self.one("cold"), self.all_of("left"), self.all_of("equal_graphs")
        host = [cold.get("resident"), cold.get("host")]
        return [
            *(text(rate) for rate in rates),
            " / ".join(text(share, ".2f") for share in shares if share is not None),
            self.drop(),
            text(max(lefts) / MIB if lefts else None, ".0f"),
            " / ".join(text(bytes_ / MIB, ",.0f") for bytes_ in host if bytes_ is not None),
            text(sum(self.all_of("wrong")), ".0f") if self.all_of("wrong") else "",
            f"{min(graphs):.0f} of 8" if graphs else "",
        ]

    def busy_row(self) -> list[str]:
        """The cells of the second table."""
        busy, cycles = self.one("busy"), self.one("cycles")
        longest = [text(busy.get(f"{name}_ms"), ".2f") for name in ("malloc", "free", "new", "idle")]
        grown = [cycles.get("grown"), cycles.get("host_grown")]
        return [
            *longest,
            text(ratio(cycles.get("seconds"), cycles.get("cycles", 0) / 1000), ".1f"),
            " / ".join(text(bytes_ / MIB, ",.1f") for bytes_ in grown if bytes_ is not None),
        ]


def main() -> None:
    """Writes the tables, and prints what else is to be said on the page."""
    out = Path(sys.argv[1])
    lines = [json.loads(line) for line in (out / "park.jsonl").read_text(encoding="utf-8").splitlines()]
    machine = (out / "machine.txt").read_text(encoding="utf-8").splitlines()
    gpu, host, date, commit, torch, saver, cumem, load = [*machine, *[""] * 8][:8]
    names = list(dict.fromkeys(line["allocator"] for line in lines))
    figures = {name: Figures([line for line in lines if line["allocator"] == name]) for name in names}
    ran = [name for name in names if "skipped" not in figures[name].parts]
    head = ["allocator", "cold park", "cold wake", "warm park", "warm wake", "÷ plain copy", "drop ms/GiB", "left MiB"]
    head += ["host MiB after", "wrong bytes", "graphs equal"]
    rows = [[name, *figures[name].row(figures.get(PLAIN))] for name in ran]
    busy_head = ["allocator", "busy malloc ms", "busy free ms", "new ms", "not parking ms", "ms a cycle", "grown MiB"]
    busy_rows = [[name, *figures[name].busy_row()] for name in ran if name != PLAIN]
    skipped = [f"* {name} was skipped: {figures[name].one('skipped')['reason']}\n" for name in names if name not in ran]
    pages = [
        f"* {name}: the weights take {line['weights_pages'] / GIB:.2f} GiB of the device\n"
        for name in ran
        if (line := figures[name].one("load")).get("weights_pages")
    ]
    pages += [
        f"* {name}: of what is left with everything parked, the allocator holds {max(held) / MIB:,.1f} MiB; the rest is the driver's\n"
        for name in ran
        if (held := figures[name].all_of("held"))
    ]
    machine_of = [("what", "is"), ("GPU", gpu.replace(", ", ", driver ")), ("host", host), ("date", date), ("commit", commit)]
    machine_of += [("PyTorch", f"{torch}, torch_memory_saver {saver}, vLLM {cumem}")]
    machine_of += [("how", f"`benches/gpu/park.sh OUT SITE` (`{load}`)")]
    write(out, "head", machine_of)
    write(out, "parking", [head, *rows])
    write(out, "busy", [busy_head, *busy_rows])
    print("".join(pages + skipped), end="")


if __name__ == "__main__":
    main()
