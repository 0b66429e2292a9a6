"""Measures what served memory costs a program that asks for all its memory: pairs of request and free, and PyTorch without its cache.

    python3 run/gpu/rates.py OUT --command COMMAND [--turns N]

Prints, and writes to `OUT/rates.csv`, the median of turns of each figure of `costs.cu` plain, served without slack and served, with the
rate of the served pair over the driver's; and the steps a second of PyTorch with its own cache, and without it, served, with the
segments that the last such run took from the driver and gave back. COMMAND is the built `cachalot`. Needs a GPU and nvcc, and takes
less than 4 minutes with 3 turns. PyTorch is left out where it is missing.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
from pathlib import Path

from compare import PROGRAMS, built

STEPS = 20
"""Steps of each round of PyTorch, of which a run has three."""


def figures_of(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Runs a program, and returns the figures that it prints: `name;figure`, or `steps a second figure` on the errors' file."""
    ended = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}: {ended.stderr[-500:]}")
    found = {}
    for line in (ended.stdout + ended.stderr).splitlines():
        name, _, figure = line.rpartition(";" if ";" in line else " ")
        try:
            found[name] = float(figure)
        except ValueError:
            continue
    return found


def in_turns(ways: dict[str, tuple[list[str], dict[str, str]]], turns: int) -> dict[str, dict[str, float]]:
    """Returns the median of each figure in each way. In turns, since the host is shared and its clock varies."""
    found: dict[str, dict[str, list[float]]] = {}
    for way, (command, environment) in [*ways.items()] * turns:
        for name, figure in figures_of(command, environment).items():
            found.setdefault(name, {}).setdefault(way, []).append(figure)
    return {name: {way: statistics.median(each) for way, each in by_way.items()} for name, by_way in found.items()}


def segments_of(record: Path) -> dict[str, int]:
    """Returns how many segments a recorded program took and gave back."""
    letters = [row.split(",", 1)[0] for row in record.read_text().splitlines()]
    return {"taken": letters.count("A"), "given back": letters.count("F"), "requests": letters.count("a")}


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--command", required=True)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    out: Path = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    command = str(Path(asked.command).resolve())
    costs = built(out, "costs.cu", "-lcuda")
    served = [command, "run", "--"]
    found = in_turns(
        {
            "plain": ([costs], {}),
            "without slack": ([command, "run", "--slack", "0", "--", costs], {}),
            "served": ([*served, costs], {}),
        },
        asked.turns,
    )
    rows = [["what", "plain", "without slack", "served", "plain over served"]]
    for name, ways in found.items():
        over = ways["plain"] / ways["served"]
        rows.append([name, *(f"{ways[way]:.1f}" for way in ("plain", "without slack", "served")), f"{over:.2f}"])
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode:
        print("left out: no torch", file=sys.stderr)
    else:
        steps = [sys.executable, str(PROGRAMS / "torch_steps.py"), "eager", str(STEPS)]
        uncached = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        record = out / "uncached.csv"
        record.unlink(missing_ok=True)
        ways = {
            "cached": (steps, {}),
            "without slack": ([command, "run", "--slack", "0", "--", *steps], uncached),
            "served": ([*served, *steps], uncached),
        }
        rate = in_turns(ways, asked.turns)["steps a second"]
        rows.append(["PyTorch, steps a second", *(f"{rate[way]:.2f}" for way in ways), f"{rate['served'] / rate['cached']:.3f} of cached"])
        figures_of([command, "run", "--record", str(record), "--", *steps], uncached)
        rows.append(["PyTorch, no caching, segments", "", "", str(segments_of(record)), ""])
    with (out / "rates.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    for name, *figures in rows:
        print(f"{name:44}" + "".join(f"{figure:>18}" for figure in figures))


if __name__ == "__main__":
    main()
