"""Writes the tables of tests/results/policies.md: every policy on the recorded programs, compared with the recordings.

    cargo build --release -p cachalot-cli
    python3 benches/policies_table.py tests/results/policies target/release/cachalot tests/traces/*.csv.gz
"""

import csv
import datetime
import json
import math
import os
import platform
import subprocess
import sys

CONFIGS = ["expandable_segments:True", "decisions:improved"]
ORDER = ["caching", "caching decisions:improved", "caching expandable_segments:True", "stitched", "bfc", "buddy", "size_class",
         "slab", "planned", "direct"]


def key_of(run):
    """Returns the row of a run: the policy, and the settings if they are not the defaults."""
    return f"{run['policy']} {run['config']}".strip() if run["config"] in ["", *CONFIGS] else None


def rows_of(runs):
    """Returns the runs of each row. A recording counts in the first row, and in the row of its settings."""
    rows = {"the recording": [run for run in runs if run["is_recorded"]]}
    for name in ORDER:
        rows[name] = [run for run in runs if key_of(run) == name]
    return rows


def figures(name, runs):
    """Returns the cells of a row."""
    shares = [run["utilisation"] for run in runs]
    mean = math.exp(sum(map(math.log, shares)) / len(shares))
    calls = sum(sum(run["device_calls"].values()) for run in runs)
    time = sum(run["driver_us"] for run in runs) / 1000
    policy, *settings = name.split(" ")
    label = name if name == "the recording" else ", ".join(f"`{part}`" for part in [policy, *settings])
    return [label, f"{mean * 100:.1f}", f"{min(shares) * 100:.1f}", calls, f"{time:.0f}", sum(run["ooms"] for run in runs)]


def processor():
    """Returns the name of the processor."""
    with open("/proc/cpuinfo", encoding="ascii") as lines:
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))


def write(out, name, rows):
    """Writes a table as CSV. The first row has the titles."""
    with open(os.path.join(out, f"{name}.csv"), "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def main(out, command, files):
    """Writes the tables."""
    options = [option for config in CONFIGS for option in ("--config", config)]
    output = subprocess.run([command, "compare", "--json", *options, *files], check=False, capture_output=True, text=True)
    runs = [json.loads(line) for line in output.stdout.splitlines()]
    rows = rows_of(runs)
    assert all(len(found) == len(files) for found in rows.values()), {name: len(found) for name, found in rows.items()}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    made_by = "`python3 benches/policies_table.py tests/results/policies target/release/cachalot tests/traces/*.csv.gz`, which runs " \
        f"`cachalot compare --json {' '.join(options)} tests/traces/*.csv.gz`"
    write(out, "head", [("what", "is"), ("machine", f"{processor()}, no GPU"), ("system", f"Linux {platform.release()}"),
                        ("date", datetime.date.today()), ("commit", commit), ("command", made_by)])
    titles = ["policy", "utilisation, %", "lowest, %", "driver calls", "time, ms", "out of memory"]
    write(out, "policies", [titles, *(figures(name, found) for name, found in rows.items())])


main(sys.argv[1], sys.argv[2], sys.argv[3:])
