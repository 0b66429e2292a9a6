"""What the scripts of published bugs share: the allocators, the memory of the device, and the result as a line of JSON.

A script is called with the name of an allocator. `--dry` leaves out kernels and copies, for the emulated driver, on
which everything but time and contents is as on a GPU.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

MIB = 1 << 20
GIB = 1 << 30
ALLOCATORS = {
    "native": "",
    "expandable": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
    "cachalot": "",
}
"""By name, what PYTORCH_CUDA_ALLOC_CONF says."""


class Run:
    """One run of a script: the allocator that was asked for, and the memory of the device."""

    def __init__(self, config: str = "policy:stitched") -> None:
        """Switches the allocator on. `config` has cachalot's settings."""
        self.allocator = sys.argv[1]
        self.dry = "--dry" in sys.argv
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = ALLOCATORS[self.allocator]
        import torch

        self.torch = torch
        self.own: Any = None
        if self.allocator == "cachalot":
            import cachalot_gpu.torch as own

            own.enable(config)
            self.own = own
        torch.cuda.init()
        torch.empty(1, device="cuda")
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.before = self.used()
        self.peak = 0
        self.began = time.monotonic()

    def used(self) -> int:
        """The bytes of the device in use."""
        free, total = self.torch.cuda.mem_get_info()
        return total - free

    def look(self) -> int:
        """Returns the bytes that the program has taken since the start, and notes the most."""
        now = self.used() - self.before
        self.peak = max(self.peak, now)
        return now

    def empty(self, bytes_: int) -> Any:
        """A tensor without contents."""
        return self.torch.empty(bytes_, dtype=self.torch.uint8, device="cuda")

    def copy(self, to: Any, of: Any) -> None:
        """Writes as much of a tensor as fits into another one."""
        if not self.dry:
            size = min(to.numel(), of.numel())
            to[:size].copy_(of[:size])

    def end(self, answer: str, **more: Any) -> None:
        """Prints the result. `answer` says in a word whether the program did what it should."""
        self.torch.cuda.synchronize()
        held = self.look()
        result = {
            "allocator": self.allocator,
            "answer": answer,
            "peak_gib": round(self.peak / GIB, 3),
            "end_gib": round(held / GIB, 3),
            "ms": round(1e3 * (time.monotonic() - self.began), 1),
        }
        print(json.dumps({**result, **more}), flush=True)
