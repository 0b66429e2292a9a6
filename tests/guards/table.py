#!/usr/bin/env python3
"""Writes tests/results/guards.md from what run.sh has found.

    tests/guards/table.py RESULTS > tests/results/guards.md
"""

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


def main():
    folder = pathlib.Path(sys.argv[1])
    outcomes = {mode: read(folder / f"{mode}.txt") for mode in MODES if (folder / f"{mode}.txt").exists()}
    found = {mode: of for mode, (of, _) in outcomes.items()}
    programs = sorted({name for of in found.values() for name in of}, key=lambda name: (list(KINDS).index(kind) if (kind := name.split("-")[0]) in KINDS else 9, name))
    print("# Planted memory errors\n")
    print(", ".join((folder / "machine.txt").read_text().split("\n")).strip(", ") + ".")
    print("The programs are in `tests/guards/defects.cu`, and `tests/guards/build.sh` and `run.sh` build and run them.\n")
    print("`block`: the device stops at the instruction, and the library names the right block; under compute-sanitizer, the")
    print("tool names the right address; with canaries, the log does, at the free. `fault`: noticed, and neither is named. `-`: not")
    print("noticed.\n")
    head = [MODES[mode] for mode in found]
    print("| found | " + " | ".join(head) + " |")
    print("|---|" + "---|" * len(head))
    for kind, title in KINDS.items():
        names = [name for name in programs if name.startswith(kind + "-")]
        cells = [f"{sum(of.get(name) in ('block', 'fault') for name in names)} of {sum(name in of for name in names)}" for of in found.values()]
        print(f"| {title} | " + " | ".join(cells) + " |")
    clean = [name for name in programs if name.startswith("clean-")]
    cells = [f"{sum(of.get(name, '-') != '-' for name in clean)} of {sum(name in of for name in clean)}" for of in found.values()]
    print("| false alarms | " + " | ".join(cells) + " |\n")
    frees = [f"{MODES[mode]} {free:.0f} ms (`{name}`)" for mode, (_, (free, name)) in outcomes.items()]
    print("The longest free, or question for complete work, in a program across streams: " + ", ".join(frees) + ".\n")
    print("| program | " + " | ".join(head) + " |")
    print("|---|" + "---|" * len(head))
    for name in programs:
        print(f"| `{name}` | " + " | ".join(of.get(name, "not run") for of in found.values()) + " |")


if __name__ == "__main__":
    main()
