"""LBANN 380 and rmm 2366: memory that is freed by destructors after `main`, when the driver may have ended.

    python ends.py ALLOCATOR [--dry]

A child process leaves its tensors, an event and a pool to what runs at the end: an `atexit` function, a module's
globals, and a destructor that frees device memory and synchronises. rmm's reports had SIGSEGV in 60 to 80 % of the
runs, and LBANN's an error of the runtime that is unloading.

Right: every one of 8 children ends with status 0 and no output.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from common import ALLOCATORS, MIB, Run

CHILDREN = 8
"""They run at the same time."""


class Last:
    """Frees device memory where the interpreter destroys its globals."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.tensors = [run.empty(8 * MIB) for _ in range(8)]
        self.event = run.torch.cuda.Event()
        self.event.record()

    def __del__(self) -> None:
        self.tensors.clear()


def child() -> None:
    """Ends with everything alive."""
    import atexit

    global last, pool  # noqa: PLW0603
    run = Run()
    last = Last(run)
    pool = run.torch.cuda.MemPool() if run.allocator != "cudaMallocAsync" else None
    atexit.register(lambda: last.event.synchronize())


def main() -> None:
    if "child" in sys.argv:
        child()
        return
    assert sys.argv[1] in ALLOCATORS
    command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "child"]
    children = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(CHILDREN)]
    said = [child.communicate(timeout=60)[1].strip()[-200:] for child in children]
    outcomes = [(child.returncode, text) for child, text in zip(children, said)]
    bad = [outcome for outcome in outcomes if outcome != (0, "")]
    Run().end("right" if not bad else f"{len(bad)} of {CHILDREN} fail: {bad[0]}")


if __name__ == "__main__":
    main()
