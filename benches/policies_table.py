"""Writes tests/results/policies.md: every policy on the recorded programs, compared with the recordings.

    cargo build --release -p cachalot-cli
    python3 benches/policies_table.py target/release/cachalot tests/traces/*.csv.gz > tests/results/policies.md
"""

import datetime
import json
import math
import platform
import subprocess
import sys

CONFIGS = ["expandable_segments:True", "parity:False"]
ORDER = ["caching", "caching parity:False", "caching expandable_segments:True", "stitched", "bfc", "buddy", "size_class",
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
    return [label, f"{mean:.1%}".replace("%", " %"), f"{min(shares):.1%}".replace("%", " %"), f"{calls:,}",
            f"{time:,.0f} ms", str(sum(run["ooms"] for run in runs))]


def processor():
    """Returns the name of the processor."""
    with open("/proc/cpuinfo", encoding="ascii") as lines:
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))


def main(command, files):
    """Prints the page."""
    options = [option for config in CONFIGS for option in ("--config", config)]
    output = subprocess.run([command, "compare", "--json", *options, *files], check=False, capture_output=True, text=True)
    runs = [json.loads(line) for line in output.stdout.splitlines()]
    rows = rows_of(runs)
    assert all(len(found) == len(files) for found in rows.values()), {name: len(found) for name, found in rows.items()}
    own = sum(run["config"] != "" for run in rows["the recording"])
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print("# Every policy on the recorded programs\n")
    print(f"* machine: {processor()}, no GPU\n* system: Linux {platform.release()}")
    print(f"* date: {datetime.date.today()}\n* commit: {commit}")
    print("* command: `python3 benches/policies_table.py target/release/cachalot tests/traces/*.csv.gz`, which runs "
          f"`cachalot compare --json {' '.join(options)} tests/traces/*.csv.gz`\n")
    print("The twenty programs run on a simulated device of 139 GiB, or of their recorded limit, with their recorded calls "
          f"of `empty_cache()`. *the recording*: each program as it was recorded, with its own settings; {own} have some. Every "
          "other row has the policy's default settings, but for those named. *utilisation*: the geometric mean of peak live "
          "over peak reserved; *lowest*: that of one program. *time*: of the driver calls, with an H200's costs. Peaks and "
          "calls repeat exactly on every machine, but for `planned`, whose search ends at a deadline.\n")
    print("| policy | utilisation | lowest | driver calls | time | out of memory |\n|---|---|---|---|---|---|")
    for name, found in rows.items():
        print("| " + " | ".join(figures(name, found)) + " |")


main(sys.argv[1], sys.argv[2:])
