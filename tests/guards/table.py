#!/usr/bin/env python3
"""Writes found.csv and programs.csv of tests/results/guards/ from what run.sh has found, into its folder. Prints the longest frees.

    tests/guards/table.py RESULTS
"""

import csv
import pathlib
import sys

MODES = {
    "nothing": "nothing",
    "all": "`guard:all`",
    "after": "`guard:after`",
    "before": "`guard:before`",
    "sampled": "`guard:sampled:1`",
    "canary": "`canary:True`",
    "memcheck": "memcheck",
    "nvtx": "memcheck, `nvtx:auto`",
    "direct": "memcheck, `policy:direct,nvtx:off`",
    "races": "memcheck with races, `policy:direct`",
    "async": "memcheck with races, `cudaMallocAsync`",
    "initcheck": "initcheck, `nvtx:auto`",
}
KINDS = {"space": "beyond a block", "time": "after the free", "stream": "across streams"}


def read(path):
    """Returns the outcome of each program: `block`, `fault`, `-` or `broken`; and the longest free of the programs across
    streams in milliseconds, with its program."""
    outcomes, longest = {}, (0.0, "-")
    for line in path.read_text().splitlines():
        name, verdict, right, _code, touched, _said, free, errors, address = (line.split("\t") + ["-"] * 9)[:9]
        if name.startswith("stream-") and free not in ("", "-"):
            longest = max(longest, (float(free), name))
        reported = errors.isdigit() and int(errors) > 0
        if verdict == "broken":
            outcomes[name] = "broken"
        elif verdict in ("found", "false") or reported:
            by_tool = errors.isdigit()
            named = reported and address == touched if by_tool else right == "right"
            outcomes[name] = "block" if named else "fault"
        else:
            outcomes[name] = "-"
    return outcomes, longest


def write(folder, name, table):
    """Writes a table as CSV. The first row has the titles."""
    with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(table)


def main():
    folder = pathlib.Path(sys.argv[1])
    outcomes = {mode: read(folder / f"{mode}.txt") for mode in MODES if (folder / f"{mode}.txt").exists()}
    found = {mode: of for mode, (of, _) in outcomes.items()}
    programs = sorted({name for of in found.values() for name in of}, key=lambda name: (list(KINDS).index(kind) if (kind := name.split("-")[0]) in KINDS else 9, name))
    head = [MODES[mode] for mode in found]
    table = [["found", *head]]
    for kind, title in KINDS.items():
        names = [name for name in programs if name.startswith(kind + "-")]
        table.append([title, *(f"{sum(of.get(name) in ('block', 'fault') for name in names)} of {sum(name in of for name in names)}"
                               for of in found.values())])
    clean = [name for name in programs if name.startswith("clean-")]
    table.append(["false alarms", *(f"{sum(of.get(name, '-') != '-' for name in clean)} of {sum(name in of for name in clean)}"
                                    for of in found.values())])
    write(folder, "found", table)
    write(folder, "programs", [["program", *head], *([f"`{name}`", *(of.get(name, "not run") for of in found.values())] for name in programs)])
    frees = [f"{MODES[mode]} {free:.0f} ms (`{name}`)" for mode, (_, (free, name)) in outcomes.items()]
    print("The longest free, or question for complete work, in a program across streams: " + ", ".join(frees) + ".")


if __name__ == "__main__":
    main()
