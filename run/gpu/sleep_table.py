"""Makes tests/results/sleep.md from what sleep.py and shifts.py left in folders, and prints it.

    python3 run/gpu/sleep_table.py --machine "GPU; host" --date DATE --commit COMMIT --link "TO_GPU;TO_HOST" --costs COSTS.csv SLEEP.csv [SHIFTS.csv...]
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

HEAD = """\
# Programs that sleep

* GPU: {machine}
* date: {date}; commit: {commit}
* how: `python3 run/gpu/sleep.py OUT --command COMMAND`

Two processes of each unchanged program, of 12 GiB each, take {turns} turns each: one is parked by `cachalot park`, and the other's next call \
wakes it. A third process holds the rest of the GPU, so that only one of the two has room. *equal*: every answer of both is that \
of a process which runs alone and never sleeps, to the byte. The link moves {to_gpu} GiB/s to the GPU and {to_host} GiB/s to the host.

*answer*: from the question to the answer, the median. *awake*: of a process that never sleeps. *woken*: of a process whose memory has to wake \
first. *restart*: from the start of a new process to its first answer. *checkpoint* and *restore*: the same process by the driver's own \
checkpoint (`cuCheckpointProcessCheckpoint`), the restore with the next answer. *÷ link*: the rate of a wake over that of the link.

| program | equal | awake s | woken s | worst s | restart s | checkpoint s | restore s | park GiB/s | wake GiB/s | ÷ link |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""

LEFT = """
## What stays on the GPU

MiB. *moved*: the memory that a park moves. *own*: what the process takes beside it before the first park: the context, modules, graphs. \
*maps*: memory that the program maps by itself and that stays. *parked*: what the process takes while it is parked, by nvidia-smi.

| program | moved | own | maps | parked |
| --- | --- | --- | --- | --- |
"""

SHIFTS = """
## Ten processes, some killed

`python3 run/gpu/shifts.py OUT --command COMMAND`: processes of one group with `--yield --awake 300ms` check and write every word of their \
memory in each round, free and request blocks at random, and pause up to a second; some are killed at random and replaced. *failed*: ended \
with another status than 0, for a wrong word or an error. *longest round*: the longest that any process waited for its turn and worked.

| processes | MiB each, at most | limit MiB | seconds | started | killed | rounds | failed | longest round s |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""

COSTS = """
## What a call costs while nothing sleeps

Nanoseconds (`run/gpu/programs/costs.cu`), medians of rounds in turn.

| call | plain | served | served, `--parkable` |
| --- | --- | --- | --- |
"""


def rows(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a table."""
    with path.open() as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Prints the page."""
    parser = argparse.ArgumentParser()
    for name in ("machine", "date", "commit", "link"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--costs", type=Path)
    parser.add_argument("sleep", type=Path)
    parser.add_argument("shifts", type=Path, nargs="*")
    asked = parser.parse_args()
    to_gpu, to_host = asked.link.split(";")
    programs = rows(asked.sleep)
    text = HEAD.format(machine=asked.machine, date=asked.date, commit=asked.commit, turns=programs[0]["turns"], to_gpu=to_gpu, to_host=to_host)
    for row in programs:
        seconds = [row[f"{name}_s"] for name in ("awake", "answer", "worst", "restart", "checkpoint", "restore")]
        rates = [f"{float(row['park_gib_s']):.1f}", f"{float(row['wake_gib_s']):.1f}", f"{float(row['wake_gib_s']) / float(to_gpu):.2f}"]
        text += f"| {row['program']} | {row['equal']} | {' | '.join(seconds + rates)} |\n"
    text += LEFT
    for row in programs:
        figures = [f"{float(row[f'{name}_mib']):,.0f}" for name in ("parked", "own", "maps", "stays")]
        text += f"| {row['program']} | {' | '.join(figures)} |\n"
    if asked.shifts:
        text += SHIFTS
        for path in asked.shifts:
            for row in rows(path):
                names = ("processes", "mib each", "limit mib", "seconds", "started", "killed", "rounds", "failed")
                text += f"| {' | '.join(row[name] for name in names)} | {float(row['longest round ms']) / 1000:.1f} |\n"
    if asked.costs:
        text += COSTS
        for row in rows(asked.costs):
            if row["what"] in ("kernel launch", "a fill of 0 bytes", "cuCtxGetCurrent"):
                text += f"| {row['what']} | {row['plain']} | {row['served']} | {row['parkable']} |\n"
    print(text, end="")


if __name__ == "__main__":
    main()
