"""Makes the tables of tests/results/sleep.md from what sleep.py and shifts.py left in folders.

    python3 run/gpu/sleep_table.py --out tests/results/sleep --machine "GPU; host" --date DATE --commit COMMIT \\
        --link TO_GPU --costs COSTS.csv SLEEP.csv [SHIFTS.csv...]

left.csv, in MiB, has a column more than the run on the page. *moved*: the memory that a park moves. *own*: what the process takes
beside it before the first park: the context, modules, graphs. *maps*: memory that the program maps by itself and that stays.
*parked*: what the process takes while it is parked, by nvidia-smi.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable
from pathlib import Path

def write(out: Path, name: str, table: Iterable[Iterable[object]]) -> None:
    """Writes a table as CSV. The first row has the titles."""
    with (out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(table)


def rows(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a table."""
    with path.open() as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Writes the tables."""
    parser = argparse.ArgumentParser()
    for name in ("machine", "date", "commit"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--link", type=float, required=True, help="GiB/s to the GPU")
    parser.add_argument("--costs", type=Path)
    parser.add_argument("sleep", type=Path)
    parser.add_argument("shifts", type=Path, nargs="*")
    asked = parser.parse_args()
    gpu, host = asked.machine.split("; ", 1)
    head = [("what", "is"), ("GPU", gpu), ("host", host), ("date", asked.date), ("commit", asked.commit)]
    write(asked.out, "head", [*head, ("how", "`python3 run/gpu/sleep.py OUT --command COMMAND`")])
    programs = [["program", "equal", "awake s", "woken s", "worst s", "restart s", "checkpoint s", "restore s", "park GiB/s",
                 "wake GiB/s", "÷ link"]]
    left = [["program", "moved", "own", "maps", "parked"]]
    for row in rows(asked.sleep):
        seconds = [row[f"{name}_s"] for name in ("awake", "answer", "worst", "restart", "checkpoint", "restore")]
        rates = [f"{float(row['park_gib_s']):.1f}", f"{float(row['wake_gib_s']):.1f}", f"{float(row['wake_gib_s']) / asked.link:.2f}"]
        programs.append([row["program"], row["equal"], *seconds, *rates])
        left.append([row["program"], *(f"{float(row[f'{name}_mib']):.0f}" for name in ("parked", "own", "maps", "stays"))])
    write(asked.out, "programs", programs)
    write(asked.out, "left", left)
    names = ("processes", "mib each", "limit mib", "seconds", "started", "killed", "rounds", "failed")
    titles = ["processes", "MiB each, at most", "limit MiB", "seconds", "started", "killed", "rounds", "failed", "longest round s"]
    shifts = [[*(row[name] for name in names), f"{float(row['longest round ms']) / 1000:.1f}"] for path in asked.shifts for row in rows(path)]
    if shifts:
        write(asked.out, "shifts", [titles, *shifts])
    if asked.costs:
        calls = ("kernel launch", "a fill of 0 bytes", "cuCtxGetCurrent")
        costs = [[row["what"], row["plain"], row["served"], row["parkable"]] for row in rows(asked.costs) if row["what"] in calls]
        write(asked.out, "costs", [["call", "plain", "served", "served, `--parkable`"], *costs])


if __name__ == "__main__":
    main()
