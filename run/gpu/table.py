"""Makes tests/results/run.md from what compare.py and suites.py left in a folder, and prints it.

    python3 run/gpu/table.py OUT [OUT...] --machine "GPU; host" --date DATE --commit COMMIT

Several folders are runs on several machines of the same kind, one after the other: a row of a later one replaces the
row of the same program.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from pathlib import Path

HEAD = """\
# Unchanged programs in front of the driver

* GPU: {machine}
* date: {date}; commit: {commit}
* how: `python3 run/gpu/compare.py OUT --command COMMAND`

Each program runs twice in a row: plain, and under `cachalot run`. *equal*: the exit status and every byte of the output \
are those of the plain run. *seconds*: of the whole program. *inside*: what the program says of itself, seconds of its \
loop or steps a second. *peak*: the most memory of the GPU in use, by nvidia-smi, 20 times a second. Freed memory of a \
served program stays with the program for its next requests, so its peak can be higher. *missed*: allocations that the \
program has freed and the library has not seen. *unexplained*: what the driver counts and no book has, when it was last asked.

| program | exit | equal | seconds, plain | served | inside, plain | served | peak MiB, plain | served | missed | unexplained MiB |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""

COSTS = """
## What a call costs

Nanoseconds, medians of rounds (`run/gpu/programs/costs.cu`), in one process each. *÷*: plain over served.

| call | plain | observed | served | served, `--parkable` | ÷ |
| --- | --- | --- | --- | --- | --- |
"""

SUITES = """
## Other projects' programs

`python3 run/gpu/suites.py OUT --command COMMAND --programs FOLDER` runs them as they come. The first lines of the script say \
what the columns mean.

| project | way | programs | equal to the byte | but for figures | but for order | vary plain | fail plain | differ |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
VERDICTS = ("yes", "figures only", "order only", "varies", "fails plain", "NO")


def suites(rows: list[dict[str, str]]) -> str:
    """Returns the section about suites.csv: counts by project and way, and the names of the programs."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    named: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        project, name = row["program"].split("/")
        if row["way"] == "plain":
            named.setdefault((project, "all"), []).append(name)
            continue
        counts.setdefault((project, row["way"]), Counter())[row["equal"]] += 1
        if row["equal"] not in ("yes", "figures only"):
            named.setdefault((project, f"{row['way']}, {row['equal']}"), []).append(f"{name} (status {row['status']})")
    text = SUITES
    for (project, way), verdicts in sorted(counts.items()):
        figures = " | ".join(str(verdicts[verdict]) for verdict in VERDICTS)
        text += f"| {project} | {way} | {verdicts.total()} | {figures} |\n"
    text += "\n"
    for (project, what), names in sorted(named.items()):
        text += f"* {project}, {what}: {', '.join(names)}\n"
    return text


def inside(text: str) -> str:
    """Returns what a program says of itself, without the words."""
    return text.replace("seconds ", "").replace("steps a second ", "")


def figure(text: str) -> str:
    """Returns nanoseconds with separators."""
    return f"{float(text):,.0f}" if float(text) >= 100 else f"{float(text):.1f}"


def main() -> None:
    """Prints the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", type=Path, nargs="+")
    for name in ("machine", "date", "commit"):
        parser.add_argument(f"--{name}", required=True)
    asked = parser.parse_args()
    programs: dict[str, dict[str, dict[str, str]]] = {}
    costs: dict[str, dict[str, str]] = {}
    others: dict[tuple[str, str], dict[str, str]] = {}
    for folder in asked.folders:
        if (folder / "suites.csv").exists():
            with (folder / "suites.csv").open() as file:
                others.update({(row["program"], row["way"]): row for row in csv.DictReader(file)})
        if not (folder / "run.csv").exists():
            continue
        with (folder / "run.csv").open() as file:
            for row in csv.DictReader(file):
                programs.setdefault(row["program"], {})[row["way"]] = row
        if (folder / "costs.csv").exists():
            with (folder / "costs.csv").open() as file:
                costs.update({row["what"]: row for row in csv.DictReader(file)})
    text = HEAD.format(machine=asked.machine, date=asked.date, commit=asked.commit)
    for name, ways in programs.items():
        plain, served = ways["plain"], ways["served"]
        text += (
            f"| {name} | {served['status']} | {served['equal']} | {plain['seconds']} | {served['seconds']} "
            f"| {inside(plain['reported'])} | {inside(served['reported'])} | {plain['peak_mib']} | {served['peak_mib']} "
            f"| {served['missed']} | {served['unexplained_mib']} |\n"
        )
    if costs:
        text += COSTS
        for name, row in costs.items():
            ratio = float(row["plain"]) / float(row["served"])
            text += f"| {name} | {figure(row['plain'])} | {figure(row['observed'])} | {figure(row['served'])} | {figure(row['parkable'])} | {ratio:.2f} |\n"
    if others:
        text += suites(list(others.values()))
    print(text, end="")


if __name__ == "__main__":
    main()
