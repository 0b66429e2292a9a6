"""The ledgers of training on all GPUs of a machine: what the driver counts for each process, and what no book explains.

    python3 run/gpu/ledgers.py OUT --command COMMAND [--steps N]

One process a GPU trains with NCCL and Triton (`programs/nccl_train.py`) under `cachalot run --ledger-file`. Prints and writes to `ledgers.csv` a
line for each process: the bytes that the driver counts, the bytes that no book has, and their share. The exit status is 1 if a process fails,
if the digests differ, or if more is unexplained than 64 MiB and 1 %. COMMAND is the built `cachalot`. Needs PyTorch and two GPUs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from pathlib import Path

from compare import PROGRAMS, gpus

MIB = 2**20
MAY_STAY = 64 * MIB


def main() -> int:
    """Trains, and writes the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--command", required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--limit", type=float, default=240)
    asked = parser.parse_args()
    out: Path = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    world = gpus()
    running = []
    for rank in range(world):
        command = [asked.command, "run", "--ledger-file", str(out / f"ledger-{rank}.json"), "--", sys.executable]
        command += [str(PROGRAMS / "nccl_train.py"), str(asked.steps)]
        environment = {**os.environ, "RANK": str(rank), "WORLD": str(world), "PYTHONPATH": str(PROGRAMS)}
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=asked.limit)[0].strip() for process in running]
    wrong = any(process.returncode for process in running) or len(set(said)) != 1
    print(f"{world} processes: {said}")
    with (out / "ledgers.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["process", "counted MiB", "unexplained MiB", "share"])
        for rank in range(world):
            books = json.loads((out / f"ledger-{rank}.json").read_text())["books"]
            # A process looks at the other devices, too.
            book = max(books, key=lambda book: book["booked"])
            counted, rest = book["driver"]["used"], book["unexplained"]
            table.writerow([rank, f"{counted / MIB:.0f}", f"{rest / MIB:.1f}", f"{rest / counted:.4f}"])
            print(f"process {rank}: {counted / MIB:.0f} MiB counted by the driver, {rest / MIB:.1f} unexplained")
            wrong |= rest > max(MAY_STAY, counted // 100)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
