"""Writes the tables of tests/results/tune.md: settings found by `cachalot tune`, on programs that it did not see.

    cargo build --release -p cachalot-cli
    python3 benches/tune_table.py tests/results/tune target/release/cachalot tests/traces/*.csv.gz
"""

import csv
import datetime
import json
import math
import os
import platform
import subprocess
import sys

SEEDS = range(5)
EXPANDABLE = "expandable_segments:True"


def run(command, arguments):
    """Returns what `cachalot tune --json` found."""
    arguments = [command, "tune", "--json", *arguments]
    output = subprocess.run(arguments, check=True, capture_output=True, text=True)
    return json.loads(output.stdout)


def percent(change):
    """Formats a change as the command does, and `None` for settings that were given up before the end."""
    if change is None:
        return "—"
    sign = "-" if change < -0.0005 else "+" if change > 0.0005 else ""
    return f"{sign}{abs(change) * 100:.1f}"


def write(out, name, rows):
    """Writes a table as CSV. The first row has the titles."""
    with open(os.path.join(out, f"{name}.csv"), "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def chosen(found, whom):
    """Returns the configuration for `torch` or `cachalot`, and its figures where it was held back."""
    best = found[whom] or found["tried"][0]
    return f"`{best['config']}`" if found[whom] else "the recording's own", best["held_back"]


def held_back(found, config):
    """Returns the figures of a configuration, none if the configuration was given up or not tried."""
    return next((tried["held_back"] or {} for tried in found["tried"] if tried["config"] == config), {})


def mean(changes):
    """Returns the geometric mean of the changes that are known."""
    changes = [change for change in changes if change is not None]
    return math.exp(sum(math.log1p(change) for change in changes) / len(changes)) - 1


def each(command, files, aim):
    """Returns the table of single programs, whose later part is held back."""
    value = {"memory": "memory_change", "time": "time_change"}[aim]
    other = {"memory": "time_change", "time": "memory_change"}[aim]
    titles = {"memory": ("reserved", "driver time"), "time": ("driver time", "reserved")}[aim]
    unit = {"memory": "MiB", "time": "ms"}[aim]
    rows = [("program", f"{titles[0]} as recorded, {unit}", "expandable, %", "found for PyTorch", f"{titles[0]}, %", f"{titles[1]}, %",
             "found for cachalot", f"{titles[0]} there, %", f"{titles[1]} there, %")]
    changes = ([], [], [])
    worst = ([], [], [])
    for file in files:
        found = run(command, ["--for", aim, file])
        base = found["tried"][0]["held_back"]
        if base is None:
            continue
        expandable = held_back(found, EXPANDABLE)
        torch, cachalot = chosen(found, "torch"), chosen(found, "cachalot")
        cost = base["programs"][0]
        amount = f"{cost['reserved_bytes'] / 2**20:.0f}" if aim == "memory" else f"{cost['driver_ns'] / 1e6:.2f}"
        rows.append((found["seen"][0], amount, percent(expandable.get(value)), torch[0], percent(torch[1][value]),
                     percent(torch[1][other]), cachalot[0], percent(cachalot[1][value]),
                     percent(cachalot[1][other])))
        for at, figures in enumerate((expandable, torch[1], cachalot[1])):
            changes[at].append(figures.get(value))
            if figures.get("ooms") == base["ooms"]:
                worst[at].append(figures["worst_change"])
    rows.append(("geometric mean", "", percent(mean(changes[0])), "", percent(mean(changes[1])), "", "",
                 percent(mean(changes[2])), ""))
    rows.append(("worst", "", percent(max(worst[0])), "", percent(max(worst[1])), "", "", percent(max(worst[2])), ""))
    return rows


def half(command, files):
    """Returns the table of half of the programs, for several seeds."""
    rows = [("seed", "most harm, %", "held back", "expandable, %", "worst of it, %", "found for PyTorch", "reserved, %", "worst, %",
             "found for cachalot", "reserved there, %", "worst there, %")]
    for harm in (1, 3):
        for seed in SEEDS:
            found = run(command, ["--seed", str(seed), "--most-harm", str(harm), *files])
            expandable = held_back(found, EXPANDABLE)
            torch, cachalot = chosen(found, "torch"), chosen(found, "cachalot")
            cells = [seed, harm, f"{len(found['held_back'])} of {len(files)}",
                     percent(expandable.get("memory_change")), percent(expandable.get("worst_change"))]
            for config, figures in (torch, cachalot):
                cells += [config, percent(figures["memory_change"]), percent(figures["worst_change"])]
            rows.append(tuple(cells))
    return rows


def processor():
    """Returns the name of the processor."""
    with open("/proc/cpuinfo", encoding="ascii") as lines:
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))


def main(out, command, files):
    """Writes the tables."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    made_by = "`python3 benches/tune_table.py tests/results/tune target/release/cachalot tests/traces/*.csv.gz`"
    write(out, "head", [("what", "is"), ("machine", f"{processor()}, no GPU"), ("system", f"Linux {platform.release()}"),
                        ("date", datetime.date.today()), ("commit", commit), ("command", made_by)])
    write(out, "memory", each(command, files, "memory"))
    write(out, "time", each(command, files, "time"))
    write(out, "half", half(command, files))


main(sys.argv[1], sys.argv[2], sys.argv[3:])
