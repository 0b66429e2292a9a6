#!/usr/bin/env python3
"""Writes which branches of the core its tests take, for tests/results/coverage.md, and prints the others.

    tests/coverage.py OUT [--quick LIST.json] [--export FILE.json]

The unit tests of the core and `tests/tests/allocator.rs` are built with LLVM's counters, by the nightly compiler with its
component llvm-tools. With the counters, slow tests take a quarter of an hour: --quick runs those of the allocator that a campaign of
`tests/mutants.sh` lists as quick. --export reads what an earlier run exported, and builds nothing.
"""

import argparse
import collections
import csv
import datetime
import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = [("cachalot-core", ["--lib"]), ("cachalot-tests", ["--test", "allocator"])]


def export(folder, names):
    """Builds and runs the programs, of the last one the tests of these names, and returns what llvm-cov exports."""
    environment = dict(os.environ, CARGO_TARGET_DIR=str(folder), RUSTFLAGS="-C instrument-coverage -Z coverage-options=branch")
    environment.setdefault("PROPTEST_CASES", "8")
    profiles, programs = [], []
    for package, target in PROGRAMS:
        cargo = ["cargo", "+nightly", "test", "--locked", "-p", package, *target]
        # Build scripts have counters, too.
        building = dict(environment, LLVM_PROFILE_FILE=os.devnull)
        built = subprocess.run([*cargo, "--no-run", "--message-format=json"], cwd=ROOT, env=building, check=True, capture_output=True)
        lines = [json.loads(line) for line in built.stdout.splitlines()]
        name = target[-1] if target[0] == "--test" else package.replace("-", "_")
        programs += [line["executable"] for line in lines if line.get("executable") and line["target"]["name"] == name]
        profiles.append(str(folder / f"{package}.profraw"))
        only = ["--", "--exact", *names] if names and target[0] == "--test" else []
        subprocess.run([*cargo, *only], cwd=ROOT, env=dict(environment, LLVM_PROFILE_FILE=profiles[-1]), check=True)
    sysroot = subprocess.run(["rustc", "+nightly", "--print", "sysroot"], check=True, capture_output=True, text=True).stdout.strip()
    tools = next(pathlib.Path(sysroot).glob("lib/rustlib/*/bin/llvm-cov")).parent
    merged = str(folder / "all.profdata")
    subprocess.run([tools / "llvm-profdata", "merge", "-sparse", *profiles, "-o", merged], check=True)
    objects = [programs[0], *(part for program in programs[1:] for part in ["-object", program])]
    command = [tools / "llvm-cov", "export", *objects, f"-instr-profile={merged}", "core/src"]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)


def branches(file, source):
    """Returns how often each direction of each branch of a file was taken, over all types that it is compiled for.

    Neither tests nor assertions count: an assertion has a direction that only a defect takes."""
    end = next((at for at, line in enumerate(source, 1) if line.startswith("mod tests") and line.endswith("{")), len(source))
    taken = collections.Counter()
    for line, column, _, _, if_true, if_false, *_ in file["branches"]:
        if line < end and "assert" not in source[line - 1]:
            taken[line, column, "true"] += if_true
            taken[line, column, "false"] += if_false
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--quick", type=pathlib.Path)
    parser.add_argument("--export", type=pathlib.Path)
    options = parser.parse_args()
    names = [test["name"] for test in json.loads(options.quick.read_text())] if options.quick else []
    data = json.loads(options.export.read_text()) if options.export else export(ROOT / "target/coverage", names)
    which, quick = (f"the {len(names)} quick tests of", f" --quick {options.quick}") if names else ("all of", "")
    folders, untaken = collections.defaultdict(lambda: [0, 0, 0, 0]), []
    for file in data["data"][0]["files"]:
        name = file["filename"].split("core/src/")[1]
        if any(part == "tests" or part.startswith("tests") for part in name.removesuffix(".rs").split("/")):
            continue
        source = (ROOT / "core/src" / name).read_text().splitlines()
        taken, lines = branches(file, source), file["summary"]["lines"]
        missed = sorted(key for key, count in taken.items() if count == 0)
        for row in [name.split("/")[0].removesuffix(".rs"), "all"]:
            for at, value in enumerate([lines["count"], lines["covered"], len(taken), len(taken) - len(missed)]):
                folders[row][at] += value
        if missed:
            places = collections.defaultdict(list)
            for line, column, direction in missed:
                places[line, column].append(direction)
            texts = [f"{at[0]}:{at[1]} {'neither' if len(never) == 2 else never[0]}" for at, never in places.items()]
            untaken.append(f"* `{name}`: " + ", ".join(texts))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    compiler = subprocess.run(["rustc", "+nightly", "--version"], check=True, capture_output=True, text=True).stdout.strip()
    share = lambda part, whole: f"{100 * part / whole:.1f}" if whole else "none"
    rows = [["part of `core/src`", "lines", "% run", "directions", "% taken"]]
    for name, (lines, run, count, took) in sorted(folders.items()):
        rows.append([name, lines, share(run, lines), count, share(took, count)])
    command = f"`tests/coverage.py tests/results/coverage{quick}`"
    head = [["what", "is"], ["machine", "any, the counts are exact"], ["compiler", compiler], ["date", datetime.date.today()],
            ["commit", commit], ["command", command]]
    options.out.mkdir(exist_ok=True)
    for name, table in [("head", head), ("parts", rows)]:
        with (options.out / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table)
    print(f"the unit tests of the core and {which} `tests/tests/allocator.rs` do not take:\n\n" + "\n".join(untaken))


if __name__ == "__main__":
    main()
