"""Replays recorded programs with real memory under PyTorch's own allocator, as recorded.cu does under others.

    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python3 recorded_torch.py PASSES RECORD...

Prints the lines of CSV that recorded.cu prints. The calls are made from Python, so a call that does not need the driver
takes some hundred nanoseconds more than in C++; `slow_us` has the calls that took more than 10 us.
"""

from __future__ import annotations

import csv
import ctypes
import gc
import gzip
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

SLOW_NS = 10_000
# Bytes written at the start of each block.
WRITTEN = 4096
COLUMNS = (
    "program,allocator,pass,requests,live_bytes,driver_bytes,own_bytes,call_us,slow_us,slow_calls,longest_us,"
    "longest_bytes,moved_bytes"
)


class Program(NamedTuple):
    """A recorded program, all of whose blocks are freed at the end."""

    name: str
    # For a request: the number of the block, the number of the stream, the bytes. For a free: bytes are 0.
    steps: list[tuple[int, int, int]]
    blocks: int
    streams: int
    peak_live: int


def read(path: str) -> Program:
    """Reads a record `action,addr,size,stream[,note]`: its requests (`a`) and frees (`f`)."""
    steps: list[tuple[int, int, int]] = []
    live: dict[str, tuple[int, int, int]] = {}
    streams = {0: 0}
    blocks = now = peak = 0
    with gzip.open(path, "rt") as file:
        for action, address, size, stream, *_ in csv.reader(file):
            if action == "a" and int(size) > 0:
                number = streams.setdefault(int(stream, 16), len(streams))
                live[address] = (blocks, number, int(size))
                steps.append(live[address])
                blocks += 1
                now += int(size)
                peak = max(peak, now)
            elif action == "f" and address in live:
                block, number, bytes_ = live.pop(address)
                steps.append((block, number, 0))
                now -= bytes_
    steps += [(block, number, 0) for block, number, _ in sorted(live.values())]
    return Program(Path(path).name.split(".")[0], steps, blocks, len(streams), peak)


class Run:
    """The runs of one program, on PyTorch's allocator with an empty cache."""

    def __init__(self, torch: Any, program: Program) -> None:
        self.torch, self.program = torch, program
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.streams = [torch.cuda.Stream() for _ in range(1, program.streams)]
        self.handles = [0, *(stream.cuda_stream for stream in self.streams)]
        self.base = self.most = self.used()

    def used(self) -> int:
        """Bytes of the device that are in use, as the driver counts them."""
        free, total = self.torch.cuda.mem_get_info()
        return int(total - free)

    def run(self) -> tuple[int, int, int, int, int]:
        """Runs the program once.

        Returns nanoseconds in all calls and in the slow ones, the number of slow calls, and nanoseconds and bytes of
        the longest call.
        """
        allocate = self.torch._C._cuda_cudaCachingAllocator_raw_alloc
        free = self.torch._C._cuda_cudaCachingAllocator_raw_delete
        write = ctypes.CDLL("libcuda.so.1").cuMemsetD8Async
        write.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p]
        clock, handles = time.perf_counter_ns, self.handles
        blocks = [0] * self.program.blocks
        every = slow = slow_calls = longest = longest_bytes = 0
        for block, number, bytes_ in self.program.steps:
            if bytes_:
                stream = handles[number]
                begin = clock()
                address = allocate(bytes_, stream)
                took = clock() - begin
                blocks[block] = address
                if code := write(address, 1, min(bytes_, WRITTEN), stream):
                    raise SystemExit(f"cuMemsetD8Async returned {code}")
            else:
                address = blocks[block]
                begin = clock()
                free(address)
                took = clock() - begin
            every += took
            if took > SLOW_NS:
                slow += took
                slow_calls += 1
                self.most = max(self.most, self.used())
            if took > longest:
                longest, longest_bytes = took, bytes_
        self.torch.cuda.synchronize()
        self.most = max(self.most, self.used())
        return every, slow, slow_calls, longest, longest_bytes


def main() -> None:
    """Prints the lines."""
    import torch

    passes, *records = sys.argv[1:]
    config = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    name = f"PyTorch, {config}" if config else "PyTorch"
    torch.cuda.init()
    torch.zeros(1024, device="cuda")
    print(COLUMNS)
    for record in records:
        program = read(record)
        run = Run(torch, program)
        # A collection of garbage would be measured as a part of a call.
        gc.collect()
        gc.disable()
        for number in range(1, int(passes) + 1):
            every, slow, slow_calls, longest, longest_bytes = run.run()
            own = torch.cuda.max_memory_reserved()
            memory = f"{program.peak_live},{run.most - run.base},{own}"
            times = f"{every / 1000:.1f},{slow / 1000:.1f},{slow_calls},{longest / 1000:.1f},{longest_bytes},0"
            print(f'{program.name},"{name}",{number},{program.blocks},{memory},{times}', flush=True)
        gc.enable()


if __name__ == "__main__":
    main()
