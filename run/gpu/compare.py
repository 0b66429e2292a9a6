"""Runs unchanged programs plain, observed and served by `cachalot run`, and compares what they print, byte by byte.

    python3 run/gpu/compare.py OUT --command COMMAND [--only NAME,...] [--limit SECONDS]

OUT gets `run.csv` with one row for each program and way: exit status, whether the output equals that of the plain
program, seconds, most memory of the device in use, and what the ledger says of memory that served, of the unexplained rest, and of allocations that came by a way the library does not see; the output of each run;
and `costs.csv` with what the calls cost. COMMAND is the built `cachalot`. Needs a GPU and nvcc; programs whose
library is missing are left out with one line.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
TURNS = 3
"""How often the costs are measured in each way."""


@dataclass(frozen=True)
class Program:
    """A program, and what it needs."""

    name: str
    command: list[str]
    needs: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    gpus: int = 1
    settings: tuple[str, ...] = ()
    seconds: int = 120


def built(out: Path, source: str, *flags: str, name: str = "") -> str:
    """Compiles a program of the folder with nvcc, and returns its path."""
    target = out / "bin" / (name or Path(source).stem)
    target.parent.mkdir(parents=True, exist_ok=True)
    nvcc = os.environ.get("NVCC", "nvcc")
    arch = os.environ.get("CACHALOT_ARCH", "sm_90")
    subprocess.run(
        [nvcc, "-O2", "-std=c++17", f"-arch={arch}", "-o", str(target), str(PROGRAMS / source), *flags], check=True
    )
    return str(target)


def path_of_driver() -> str:
    """Returns the absolute path of the driver's library, from the loader's cache."""
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    return next(line.split("=> ")[1] for line in listed.splitlines() if line.strip().startswith("libcuda.so.1 "))


def programs(out: Path) -> list[Program]:
    """Returns the programs of the table."""
    python = sys.executable
    rounds = {
        "static": built(out, "rounds.cu", "-cudart=static", name="rounds_static"),
        "shared": built(out, "rounds.cu", "-cudart=shared", name="rounds_shared"),
        "per thread": built(out, "rounds.cu", "--default-stream=per-thread", name="rounds_per_thread"),
    }
    absolute = built(out, "absolute.c", "-ldl")
    contexts = built(out, "contexts.c", "-lcuda")
    ipc = built(out, "ipc.cu")
    driver = path_of_driver()
    script = lambda name, *rest: [python, str(PROGRAMS / name), *rest]  # noqa: E731
    uncached = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    # Without these flags XLA times kernels and takes the fastest, so that two plain runs differ.
    jax = {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"}
    lazy = {**jax, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    platform = {**lazy, "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    found = [
        Program(f"nvcc, {kind} runtime" if kind != "per thread" else "nvcc, a default stream per thread", [path])
        for kind, path in rounds.items()
    ]
    found += [
        Program("the driver by its absolute path", [absolute, driver]),
        Program("two contexts, reset", [contexts]),
        Program("IPC, two processes", [ipc]),
        Program("JAX, jitted", script("jax_steps.py", "jit"), "jax", jax),
        Program("JAX, jitted, no preallocation", script("jax_steps.py", "jit"), "jax", lazy),
        Program("JAX `platform`, jitted", script("jax_steps.py", "jit"), "jax", platform),
        Program("JAX `platform`, op by op", script("jax_steps.py", "ops"), "jax", platform),
        Program("CuPy, its pool", script("cupy_steps.py", "pool"), "cupy"),
        Program("CuPy, no pool", script("cupy_steps.py", "none"), "cupy"),
        Program("CuPy, asynchronous pool", script("cupy_steps.py", "async"), "cupy"),
        Program("PyTorch", script("torch_steps.py", "eager"), "torch"),
        Program("PyTorch, graphs", script("torch_steps.py", "graph"), "torch"),
        Program("PyTorch, no caching", script("torch_steps.py", "eager"), "torch", uncached),
        Program("PyTorch, torch.compile", script("torch_steps.py", "compile"), "torch", seconds=240),
    ]
    if Path(sanitizer).exists():
        found.append(
            Program("compute-sanitizer", [sanitizer, "--tool=memcheck", "--print-level=error", rounds["static"], "300"])
        )
    found.append(Program("NCCL, two GPUs", script("nccl_steps.py"), "torch", gpus=2))
    return found


def of_book(ledger: dict) -> list[str]:
    """Returns the most memory of segments, which served the program, the unexplained rest, in MiB, and the missed allocations."""
    kinds = [kind for book in ledger["books"] for each in book["objects"] for kind in each["kinds"]]
    segments = sum(kind["peak"] for kind in kinds if kind["kind"] == "segment")
    rests = [book["unexplained"] for book in ledger["books"] if book["unexplained"] is not None]
    missed = sum(book["unknown_frees"] for book in ledger["books"])
    return [f"{segments / 2**20:.0f}", f"{sum(rests) / 2**20:.1f}" if rests else "", str(missed)]


def gpus() -> int:
    """Returns the number of GPUs."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


class Peak:
    """The most memory of the first GPU that nvidia-smi tells while the object is entered."""

    def __init__(self) -> None:
        self.mebibytes = 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def watch(self) -> None:
        """Asks until the end."""
        query = ["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "50"]
        with subprocess.Popen(query, stdout=subprocess.PIPE, text=True) as asked:
            for line in asked.stdout:
                if line.strip().isdigit():
                    self.mebibytes = max(self.mebibytes, int(line))
                if self.done.is_set():
                    asked.kill()

    def __enter__(self) -> Peak:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()


def main() -> int:
    """Runs all programs and writes the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--command", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=float, default=500)
    parser.add_argument("--ways", default="plain,observed,served")
    asked = parser.parse_args()
    out: Path = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    command = str(Path(asked.command).resolve())
    end = time.monotonic() + asked.limit
    ways = {"plain": [], "observed": [command, "run", "--observe"], "served": [command, "run"], "parkable": [command, "run", "--parkable"]}
    have = gpus()
    only = [name for name in asked.only.split(",") if name]
    wrong = 0
    with (out / "run.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["program", "way", "status", "equal", "seconds", "peak_mib", "reported", "segments_mib", "unexplained_mib", "missed"])
        for program in programs(out):
            if only and not any(name in program.name for name in only):
                continue
            if program.needs and subprocess.run([sys.executable, "-c", f"import {program.needs}"], check=False, capture_output=True).returncode:
                print(f"left out: {program.name}: no {program.needs}", file=sys.stderr)
                continue
            if program.gpus > have:
                print(f"left out: {program.name}: {have} GPUs", file=sys.stderr)
                continue
            expected = None
            for way in asked.ways.split(","):
                left = end - time.monotonic()
                if left < 5:
                    print(f"left out: {program.name}, {way}: no time", file=sys.stderr)
                    continue
                slug = "".join(c if c.isalnum() else "_" for c in f"{program.name} {way}")
                ledger = out / f"{slug}.json"
                prefix = list(ways[way])
                if prefix:
                    prefix += ["--ledger-file", str(ledger), *program.settings, "--"]
                environment = {**os.environ, **program.environment}
                begin = time.monotonic()
                with Peak() as peak:
                    try:
                        ended = subprocess.run(
                            prefix + program.command,
                            env=environment,
                            capture_output=True,
                            timeout=min(left, program.seconds),
                            check=False,
                        )
                        status, printed, errors = ended.returncode, ended.stdout, ended.stderr
                    except subprocess.TimeoutExpired as late:
                        status, printed, errors = 124, late.stdout or b"", late.stderr or b""
                seconds = time.monotonic() - begin
                (out / f"{slug}.txt").write_bytes(printed + b"\n== errors\n" + errors[-20000:])
                if way == "plain":
                    expected = (status, printed)
                equal = (status, printed) == expected
                wrong += not equal
                reported = " ".join(
                    line for line in errors.decode(errors="replace").splitlines() if line.startswith(("seconds ", "steps a second "))
                )
                booked = ["", "", ""]
                if ledger.exists():
                    try:
                        booked = of_book(json.loads(ledger.read_text()))
                    except ValueError:
                        booked = ["unreadable", "", ""]
                table.writerow([program.name, way, status, "yes" if equal else "NO", f"{seconds:.2f}", peak.mebibytes, reported, *booked])
                file.flush()
                print(f"{program.name:36} {way:9} {status:4} {'equal' if equal else 'DIFFERENT'} {seconds:6.1f} s {peak.mebibytes:6} MiB {reported}", flush=True)
    if not only or "costs" in only:
        costs = built(out, "costs.cu", "-lcuda")
        with (out / "costs.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["what", *ways])
            rows: dict[str, dict[str, list[float]]] = {}
            # In turns, since the host is shared and its clock varies.
            for way, prefix in [*ways.items()] * TURNS:
                ended = subprocess.run([*prefix, *(["--"] if prefix else []), costs], capture_output=True, text=True, timeout=120, check=False)
                if ended.returncode:
                    print(f"costs, {way}: {ended.stderr[-500:]}", file=sys.stderr)
                    wrong += 1
                for line in ended.stdout.splitlines():
                    what, figure = line.rsplit(";", 1)
                    rows.setdefault(what, {}).setdefault(way, []).append(float(figure))
            for what, figures in rows.items():
                medians = [f"{statistics.median(figures[way]):.1f}" if way in figures else "" for way in ways]
                table.writerow([what, *medians])
                print(f"{what:48} " + "  ".join(f"{way} {figure:>12}" for way, figure in zip(ways, medians)), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
