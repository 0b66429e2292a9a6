"""Has two programs that together exceed the GPU take turns, each parked while the other works, and compares what they print.

    python3 run/gpu/sleep.py OUT --command COMMAND [--mib MIB] [--turns N] [--only NAME,...] [--limit SECONDS]

OUT gets `sleep.csv` with a row for each program, and the output of each run. COMMAND is the built `cachalot`. A third program holds the
rest of the GPU, so that only one of the two has room. Needs a GPU and nvcc; programs whose library is missing are left out with one line.

* *restart*: from the start of the process to its first answer, without `cachalot run`.
* *checkpoint*: the driver's own checkpoint of the whole process (cuCheckpointProcessCheckpoint), and its restore with the next answer.
* *awake*: the median answer of a program that never sleeps.
* *first answer*: the median answer of a program whose memory has to wake.
* *maps*: memory that the program maps by itself (JAX, `expandable_segments`) and that a park leaves on the GPU: 0 if all of it moves. A program
  for which more than 64 MiB stay counts as wrong.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from compare import built

PROGRAMS = Path(__file__).resolve().parent / "programs"
MIB = 2**20
WAITS = 120
"""The longest wait for an answer, in seconds."""
MAPS_MAY_STAY = 64
"""MiB of a program's own mappings that may stay on the GPU: libraries export some of their buffers."""


class Running:
    """A program that answers each line of its input with a line."""

    def __init__(self, command: list[str], environment: dict[str, str], errors: Path) -> None:
        self.begin = time.monotonic()
        self.errors = errors.open("ab")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env={**os.environ, **environment}
        )
        self.lines: list[str] = []
        if self.line() != "ready":
            raise RuntimeError(f"{command}: not ready; see {errors}")

    def line(self) -> str:
        """Returns the next line."""
        return self.process.stdout.readline().rstrip("\n")

    def turn(self) -> float:
        """Has the program answer, and returns the seconds."""
        begin = time.monotonic()
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.lines.append(self.line())
        return time.monotonic() - begin

    def end(self) -> int:
        """Ends the program, and returns its status."""
        self.process.stdin.close()
        status = self.process.wait(WAITS)
        self.errors.close()
        return status


def ask(pid: int, request: str) -> dict:
    """Asks a process behind the library."""
    folder = Path(os.environ.get("CACHALOT_RUN_FOLDER") or f"/dev/shm/cachalot-{os.getuid()}") / "control"
    path = next(folder.glob(f"{pid}-*.sock"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(WAITS)
        asked.connect(str(path))
        asked.sendall((json.dumps({"schema": 1, "request": request, "timeout_ms": WAITS * 1000}) + "\n").encode())
        with asked.makefile() as answer:
            found = json.loads(answer.readline())
    if "ok" not in found:
        raise RuntimeError(f"{request} of {pid}: {found}")
    return found["ok"]


def used() -> int:
    """Returns the MiB of the first GPU in use."""
    query = ["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout)


class Checkpoint:
    """The driver's own checkpoints of processes."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.has = hasattr(self.driver, "cuCheckpointProcessCheckpoint") and self.driver.cuInit(0) == 0

    def call(self, name: str, pid: int) -> None:
        """Makes a call for a process."""
        arguments = (ctypes.c_uint64 * 8)()
        code = getattr(self.driver, f"cuCheckpointProcess{name}")(pid, ctypes.byref(arguments))
        if code:
            raise RuntimeError(f"cuCheckpointProcess{name}: {code}")


def programs(out: Path, mib: int) -> list[tuple[str, list[str], str, dict[str, str]]]:
    """Returns names, commands, what they need, and their environments."""
    python = sys.executable
    jax = {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"}
    platform, pool = {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    torch = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    segments = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    return [
        ("nvcc", [built(out, "turns.cu"), str(mib)], "", {}),
        ("like llama.cpp: weights, mapped pool, cuBLAS, a graph", [built(out, "tokens.cu", "-lcublas", "-lcuda"), str(mib)], "", {}),
        ("PyTorch, a graph", [python, str(PROGRAMS / "torch_turns.py"), str(mib)], "torch", torch),
        ("PyTorch, `expandable_segments`, a graph", [python, str(PROGRAMS / "torch_turns.py"), str(mib)], "torch", {**torch, **segments}),
        ("JAX `platform`", [python, str(PROGRAMS / "jax_turns.py"), str(mib)], "jax", {**jax, **platform}),
        ("JAX, its own pool", [python, str(PROGRAMS / "jax_turns.py"), str(mib)], "jax", {**jax, **pool}),
    ]


def plain(command: list[str], environment: dict[str, str], turns: int, errors: Path, checkpoint: Checkpoint) -> dict:
    """Runs a program alone, never parked, and once under the driver's checkpoint."""
    running = Running(command, environment, errors)
    running.turn()
    found: dict = {"restart_s": time.monotonic() - running.begin}
    times = [running.turn() for _ in range(turns - 2)]
    found["awake_s"] = statistics.median(times)
    if checkpoint.has:
        try:
            pid = running.process.pid
            begin = time.monotonic()
            checkpoint.call("Lock", pid)
            checkpoint.call("Checkpoint", pid)
            found["checkpoint_s"] = time.monotonic() - begin
            begin = time.monotonic()
            checkpoint.call("Restore", pid)
            checkpoint.call("Unlock", pid)
            running.turn()
            found["restore_s"] = time.monotonic() - begin
        except RuntimeError as error:
            found["checkpoint"] = str(error)
            running.turn()
    else:
        running.turn()
    found["lines"], found["status"] = running.lines, running.end()
    return found


def pair(prefix: list[str], command: list[str], environment: dict[str, str], turns: int, errors: Path) -> dict:
    """Runs two of a program, each parked while the other works."""
    before = used()
    first = Running(prefix + command, environment, errors)
    awake = used() - before
    status = ask(first.process.pid, "park")
    parked = used() - before
    served = (status["parked_bytes"] + status["device_bytes"]) / MIB
    both = [first, Running(prefix + command, environment, errors)]
    answers: list[float] = []
    parks: list[float] = []
    wakes: list[float] = []
    for _ in range(turns):
        for one, other in (both, both[::-1]):
            moved = ask(other.process.pid, "park")["last_park"]
            answers.append(one.turn())
            woken = ask(one.process.pid, "status")["last_wake"]
            if woken:
                wakes.append(woken["bytes"] / 2**30 / max(woken["ms"], 1) * 1000)
            parks.append(moved["bytes"] / 2**30 / max(moved["ms"], 1) * 1000)
    found = {
        "answer_s": statistics.median(answers),
        "worst_s": max(answers),
        "park_gib_s": statistics.median(parks),
        "wake_gib_s": statistics.median(wakes),
        "parked_mib": status["parked_bytes"] / MIB,
        "stays_mib": parked,
        "own_mib": awake - served,
        "maps_mib": sum(each["bytes"] for each in status["remaining"] if each["what"] in {"virtual", "exported"}) / MIB,
        "remaining": {each["what"]: round(each["bytes"] / MIB, 1) for each in status["remaining"]},
        "lines": [one.lines for one in both],
    }
    found["status"] = [one.end() for one in both]
    return found


def main() -> int:
    """Runs all programs and writes the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--command", required=True)
    parser.add_argument("--mib", type=int, default=12 * 1024)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=float, default=540)
    parser.add_argument("--option", action="append", default=[])
    asked = parser.parse_args()
    out: Path = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + asked.limit
    prefix = [str(Path(asked.command).resolve()), "run", "--parkable", *asked.option, "--"]
    only = [name for name in asked.only.split(",") if name]
    checkpoint = Checkpoint()
    print(subprocess.run([built(out, "link.cu")], capture_output=True, text=True, check=False).stdout, flush=True)
    hold = built(out, "hold.cu")
    columns = ["restart_s", "checkpoint_s", "restore_s", "awake_s", "answer_s", "worst_s", "park_gib_s", "wake_gib_s", "parked_mib", "stays_mib", "own_mib", "maps_mib"]
    wrong = 0
    with (out / "sleep.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["program", "turns", "equal", *columns, "remaining", "note"])
        for name, command, needs, environment in programs(out, asked.mib):
            if only and not any(part in name for part in only):
                continue
            if needs and subprocess.run([sys.executable, "-c", f"import {needs}"], check=False, capture_output=True).returncode:
                print(f"left out: {name}: no {needs}", file=sys.stderr)
                continue
            if time.monotonic() > end:
                print(f"left out: {name}: no time", file=sys.stderr)
                continue
            errors = out / ("".join(c if c.isalnum() else "_" for c in name) + ".txt")
            alone, held, row = {}, None, {}
            try:
                alone = plain(command, environment, asked.turns, errors, checkpoint)
                held = Running([hold, str(asked.mib * 3 // 2 + 4096)], {}, errors)
                row = pair(prefix, command, environment, asked.turns, errors)
            except (RuntimeError, OSError, ValueError) as error:
                row["note"] = repr(error)[:300]
            finally:
                if held:
                    held.end()
            equal = bool(row.get("lines")) and all(lines == alone["lines"] for lines in row["lines"]) and not any(row["status"])
            wrong += not equal or row["maps_mib"] > MAPS_MAY_STAY
            both = {**alone, **row}
            figures = [f"{both[column]:.3f}" if column in both else "" for column in columns]
            table.writerow([name, asked.turns, "yes" if equal else "NO", *figures, json.dumps(row.get("remaining", {})), row.get("note", alone.get("checkpoint", ""))])
            file.flush()
            (out / f"{errors.stem}_lines.json").write_text(json.dumps([alone.get("lines"), row.get("lines")]))
            print(name, "equal" if equal else "DIFFERENT", dict(zip(columns, figures)), row.get("remaining"), row.get("note", alone.get("checkpoint", "")), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
