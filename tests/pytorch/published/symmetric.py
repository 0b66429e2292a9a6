"""pytorch 176439: a buffer for symmetric memory is idle at the peak of a step, and nothing else may use it.

    python symmetric.py ALLOCATOR [--dry]

A buffer of 2 GiB in a pool of its own serves collectives in the first half of each of eight steps; the second half, a
head with 6 GiB of activations, is the peak. The RFC asks for two calls: lend the buffer to the default pool while it is
idle, and take it back.

Right: the peak is that of the larger half, 6 GiB, and the buffer has its address in every step. Without loans it is
8 GiB. Contents of a lent buffer are undefined, as in the RFC.
"""

from __future__ import annotations

import contextlib

from common import GIB, MIB, Run

STEPS, BUFFER, HEAD = 8, 2 * GIB, 64


def main() -> None:
    run = Run("expandable_segments:True")
    torch = run.torch
    pool = torch.cuda.MemPool()
    addresses = set()
    for _ in range(STEPS):
        with torch.cuda.use_mem_pool(pool):
            buffer = run.empty(BUFFER)
        addresses.add(buffer.data_ptr())
        if not run.dry:
            buffer.fill_(1)
        run.look()
        # Idle from here on: the pool keeps the address.
        del buffer
        with run.own.lent(pool) if run.own is not None else contextlib.nullcontext():
            activations = [run.empty(6 * GIB // HEAD) for _ in range(HEAD)]
            if not run.dry:
                for each in activations:
                    each.fill_(2)
            run.look()
            del activations
    right = run.peak <= 6 * GIB + 256 * MIB and len(addresses) == 1
    run.end("right" if right else "the idle buffer is held at the peak", addresses=len(addresses))


if __name__ == "__main__":
    main()
