"""Measures the tools on large snapshots: time and peak memory of `view`, `inspect` and `diff`, beside PyTorch's own script.

    CARGO_PROFILE_RELEASE_LTO=off cargo build --release -p cachalot-cli -p cachalot-snapshot --bin cachalot --example synthetic
    eval "$(scripts/setup/memory_viz.sh)"
    python3 tests/tools.py target/release FOLDER

Writes each snapshot into FOLDER, measures, and removes it. Prints the table tests/results/tools/tools.csv. The script of
PyTorch gets at most LIMIT bytes of memory, because it would otherwise take that of the whole machine.
"""

import csv
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

# Events, and frames of a stack.
FILES = [(9_000, 20), (900_000, 20), (2_500_000, 96), (10_000_000, 130)]
LIMIT = 12 << 30


def run(command: list[str], limit: int | None = None) -> tuple[int, float, float, int]:
    """Runs a command. Returns the exit status, seconds, seconds of processor time, and peak memory in bytes."""
    start = time.monotonic()
    restrict = (lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))) if limit else None
    with open(os.devnull, "wb") as nothing:
        child = subprocess.Popen(command, stdout=nothing, stderr=nothing, preexec_fn=restrict)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    cpu = usage.ru_utime + usage.ru_stime
    return child.returncode, time.monotonic() - start, cpu, usage.ru_maxrss * 1024


def row(cells: list[str]) -> None:
    """Prints a row of the table."""
    csv.writer(sys.stdout, lineterminator="\n").writerow(cells)
    sys.stdout.flush()


def measure(binaries: Path, folder: Path, events: int, frames: int, script: Path | None) -> None:
    """Measures every tool on a snapshot."""
    file, page = folder / "measured.pickle", folder / "measured.html"
    subprocess.run([binaries / "examples/synthetic", file, str(events), str(frames)], check=True)
    megabytes = file.stat().st_size / 1e6
    tools = [
        ("view", [binaries / "cachalot", "view", file, "-o", page], None),
        ("inspect", [binaries / "cachalot", "inspect", file], None),
        ("diff with itself", [binaries / "cachalot", "diff", file, file], None),
    ]
    if script:
        tools.append(("_memory_viz.py", [sys.executable, script, "trace_plot", file, "-o", page], LIMIT))
    for name, command, limit in tools:
        page.unlink(missing_ok=True)
        status, seconds, cpu, peak = run([str(part) for part in command], limit)
        output = f"{page.stat().st_size / 1e6:.1f} MB" if page.exists() else ""
        if status != 0:
            output = f"fails with status {status}"
        what = [f"{megabytes:.0f}", str(events), str(frames), name]
        row([*what, f"{seconds:.1f}", f"{cpu:.1f}", f"{peak / 1e6:.0f}", output])
        page.unlink(missing_ok=True)
    file.unlink()


def main(binaries: str, folder: str) -> None:
    """Measures snapshots of all sizes."""
    viz = os.environ.get("CACHALOT_MEMORY_VIZ")
    script = Path(viz, "2.15.0/_memory_viz.py") if viz else None
    row(["snapshot, MB", "events", "frames", "tool", "s", "processor s", "peak MB", "output"])
    for events, frames in FILES:
        measure(Path(binaries), Path(folder), events, frames, script)


if __name__ == "__main__":
    main(*sys.argv[1:])
