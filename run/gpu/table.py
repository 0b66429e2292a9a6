"""Makes the tables of tests/results/run.md from what compare.py and suites.py left in a folder, and prints the names of the
programs of other projects, for the lists of the page.

    python3 run/gpu/table.py FOLDER [FOLDER...] --out tests/results/run --machine "GPU; host" --date DATE --commit COMMIT

Several folders are runs on several machines of the same kind, one after the other: a row of a later one replaces the
row of the same program.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

# What suites.py says of a program, and the column.
VERDICTS = (
    ("yes", "equal to the byte"),
    ("figures only", "but for figures"),
    ("order only", "but for order"),
    ("varies", "vary plain"),
    ("fails plain", "fail plain"),
    ("NO", "differ"),
)


def write(out: Path, name: str, table: Iterable[Iterable[object]]) -> None:
    """Writes a table as CSV. The first row has the titles."""
    with (out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(table)


def suites(rows: list[dict[str, str]]) -> list[list[object]]:
    """Returns the table about suites.csv: counts by project and way. Prints the names of the programs."""
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
    for (project, what), names in sorted(named.items()):
        print(f"* {project}, {what}: {', '.join(names)}")
    table: list[list[object]] = [["project", "way", "programs", *(title for _, title in VERDICTS)]]
    for (project, way), verdicts in sorted(counts.items()):
        table.append([project, way, verdicts.total(), *(verdicts[verdict] for verdict, _ in VERDICTS)])
    return table


def inside(text: str) -> str:
    """Returns what a program says of itself, without the words."""
    return text.replace("seconds ", "").replace("steps a second ", "")


def figure(text: str) -> str:
    """Returns nanoseconds, rounded."""
    return f"{float(text):.0f}" if float(text) >= 100 else f"{float(text):.1f}"


def main() -> None:
    """Writes the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", type=Path, nargs="+")
    for name in ("machine", "date", "commit"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--out", type=Path, required=True)
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
    gpu, host = asked.machine.split("; ", 1)
    head = [("what", "is"), ("GPU", gpu), ("host", host), ("date", asked.date), ("commit", asked.commit)]
    write(asked.out, "head", [*head, ("how", "`python3 run/gpu/compare.py OUT --command COMMAND`")])
    table = [["program", "exit", "equal", "seconds, plain", "seconds, served", "inside, plain", "inside, served", "peak MiB, plain",
              "peak MiB, served", "missed", "unexplained MiB"]]
    for name, ways in programs.items():
        plain, served = ways["plain"], ways["served"]
        table.append([name, served["status"], served["equal"], plain["seconds"], served["seconds"], inside(plain["reported"]),
                      inside(served["reported"]), plain["peak_mib"], served["peak_mib"], served["missed"], served["unexplained_mib"]])
    write(asked.out, "programs", table)
    if costs:
        table = [["call", "plain", "observed", "served", "served, `--parkable`", "÷"]]
        for name, row in costs.items():
            ratio = float(row["plain"]) / float(row["served"])
            table.append([name, *(figure(row[way]) for way in ("plain", "observed", "served", "parkable")), f"{ratio:.2f}"])
        write(asked.out, "costs", table)
    if others:
        write(asked.out, "suites", suites(list(others.values())))


if __name__ == "__main__":
    main()
