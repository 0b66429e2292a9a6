"""CUDA.jl 2898 and 3118: memory that is cached stays with the process, and reclaiming it is slow or fails.

    python reclaim.py ALLOCATOR [--dry]

A task leaves 4 GiB of free blocks of many sizes between a few that live, on two streams. Then another user of the GPU
needs the memory: one call must give it back (`empty_cache`), and after the call, work goes on at once.

Right: the call leaves little more than what lives, and the same task runs again afterwards.
"""

from __future__ import annotations

import time
from typing import Any

from common import GIB, MIB, Run

BLOCKS = 256


def task(run: Run, streams: list[Any]) -> list[Any]:
    """Allocates, and frees all but every eighth block."""
    blocks = []
    for number in range(BLOCKS):
        with run.torch.cuda.stream(streams[number % len(streams)]):
            blocks.append(run.empty((number % 32 + 1) * MIB))
    run.look()
    return blocks[::8]


def main() -> None:
    run = Run()
    streams = [run.torch.cuda.current_stream(), run.torch.cuda.Stream()]
    kept = task(run, streams)
    live = sum(block.numel() for block in kept)
    run.torch.cuda.synchronize()
    began = time.monotonic()
    run.torch.cuda.empty_cache()
    took = time.monotonic() - began
    left = run.look()
    again = task(run, streams)
    right = left <= live + 128 * MIB and len(again) == len(kept)
    figures = {"live_gib": round(live / GIB, 3), "left_gib": round(left / GIB, 3), "call_ms": round(1e3 * took, 2)}
    run.end("right" if right else "free memory stays with the process", **figures)


if __name__ == "__main__":
    main()
