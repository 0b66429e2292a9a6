"""Ten processes of a group share a GPU in turn, and some are killed at random.

    python3 run/gpu/shifts.py OUT --command COMMAND [--processes 10] [--mib MIB] [--limit-mib MIB] [--seconds N] [--seed N]

Each process holds up to MIB and the group may hold the limit, so that a few fit at a time. Prints and writes to `shifts.csv`: rounds,
kills, words that were wrong (a process ends with status 1), the longest call of any process, which is the longest wait for a turn and the
work before it, the longest round, which may wait for several turns, and the least memory of the host that was free.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import subprocess
import sys
import time
from pathlib import Path

from compare import built


def free_mib() -> int:
    """Returns the memory of the host that programs can still get."""
    found = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) >> 10 if found else 0


def main() -> int:
    """Runs the processes and writes the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--command", required=True)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--mib", type=int, default=6144)
    parser.add_argument("--limit-mib", type=int, default=20480)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--kill-every", type=float, default=7)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    out: Path = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    random.seed(asked.seed)
    program = built(out, "shifts.cu")
    name = f"shifts-{asked.seed}"
    prefix = [str(Path(asked.command).resolve()), "run", "--group", name, "--limit", f"{asked.limit_mib}MiB", "--yield", "--awake", "300ms", "--"]
    end = time.monotonic() + asked.seconds
    kept: list[tuple[subprocess.Popen, Path, bool]] = []

    def start() -> list:
        number = len(kept)
        path = out / f"shift_{number}.txt"
        left = max(end - time.monotonic(), 1)
        process = subprocess.Popen(
            [*prefix, program, str(asked.mib), f"{left:.0f}", str(asked.seed * 1000 + number)], stdout=path.open("w"), stderr=subprocess.STDOUT
        )
        kept.append((process, path, False))
        return [number, process]

    running = [start() for _ in range(asked.processes)]
    killed: set[int] = set()
    least_free = free_mib()
    while time.monotonic() < end - asked.kill_every:
        time.sleep(asked.kill_every)
        at = random.randrange(len(running))
        number, process = running[at]
        if process.poll() is None:
            process.kill()
            killed.add(number)
        process.wait()
        running[at] = start()
        least_free = min(least_free, free_mib())
    failed, rounds, longest_round, longest_call = 0, 0, 0, 0
    for number, (process, path, _) in enumerate(kept):
        status = process.wait(180)
        lines = path.read_text().splitlines()
        # The last line of a killed process may be cut.
        times = [tuple(map(int, line.split())) for line in lines if re.fullmatch(r"\d+ \d+", line)]
        rounds += len(times)
        longest_round = max([longest_round, *(round_ms for round_ms, _ in times)])
        longest_call = max([longest_call, *(call_ms for _, call_ms in times)])
        if status and number not in killed:
            failed += 1
            print(f"process {number}: status {status}: {lines[-3:]}", flush=True)
        path.unlink()
    row = {
        "processes": asked.processes, "started": len(kept), "killed": len(killed), "seconds": asked.seconds, "mib each": asked.mib,
        "limit mib": asked.limit_mib, "rounds": rounds, "failed": failed, "longest call ms": longest_call, "longest round ms": longest_round,
        "least free mib": least_free,
    }
    with (out / "shifts.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, row)
        table.writeheader()
        table.writerow(row)
    print(row, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
