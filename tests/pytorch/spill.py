"""Runs programs with less memory of the device than they need, and the rest on the host.

    python spill.py OUT [PROGRAM...]

Needs a GPU and about four minutes; `tests/pytorch/run.sh` says how cachalot gets onto the path. OUT gets spill.csv. Each
run does the same steps in a separate process. The most memory that a run without a limit holds, divided by 1.05, 1.25,
1.5 and 2, is the limit of the others. *Predicted*: the step without a limit, and the time in which the link carries what
lies on the host twice, once written and once read.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tables

PROGRAMS = ["gpt2_training", "decoder_tuning", "diffusion_unet", "llm_decoding"]
RATIOS = [1.05, 1.25, 1.5, 2.0]
WARM_UP_STEPS = 4
STEPS = 10
# The rate of the link of an H200, in bytes a second, as kernels read and write memory of the host.
LINK = 52e9
GIB = 1 << 30
PATIENCE_S = 120
HEAD = ["program", "limit", "limit, GiB", "on the host, GiB", "PyTorch, expandable", "cachalot, expandable"]
HEAD += ["with `spill`, ms a step", "without a limit, ms", "×", "predicted, ms", "losses"]
EXPANDABLE = "expandable_segments:True"


def child(program: str, allocator: str, config: str, limit: int) -> None:
    """Does the steps, and prints what they took as JSON, or that the memory ran out."""
    import torch

    if allocator == "cachalot":
        import cachalot_gpu.torch

        cachalot_gpu.torch.enable(config)
    import workloads

    torch.cuda.init()
    if limit:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    found: dict[str, Any] = {"seconds": [], "losses": [], "spilled": 0}
    try:
        step = workloads.WORKLOADS[program]()
        for number in range(WARM_UP_STEPS + STEPS):
            begin = time.perf_counter()
            loss = step(number)
            torch.cuda.synchronize()
            found["seconds"].append(time.perf_counter() - begin)
            found["losses"].append(loss.item())
            if allocator == "cachalot":
                now = cachalot_gpu.torch.statistics()["pages.spilled_bytes"]
                found["spilled"] = max(found["spilled"], now)
    except torch.OutOfMemoryError:
        found = {"out of memory": True}
    else:
        found["held"] = torch.cuda.max_memory_reserved()
    print(json.dumps(found), flush=True)


def run(program: str, allocator: str, config: str, limit: int = 0) -> dict[str, Any]:
    """What a child says."""
    variables = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if allocator == "torch":
        variables["PYTORCH_CUDA_ALLOC_CONF"] = config
    command = [sys.executable, __file__, "--child", program, allocator, config, str(limit)]
    done = subprocess.run(
        command, env=os.environ | variables, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(program, allocator, config, limit, {**found, "losses": None, "seconds": None}, file=sys.stderr, flush=True)
    return found


def pace(found: dict[str, Any]) -> float:
    """The median of the timed steps, in milliseconds."""
    return statistics.median(found["seconds"][WARM_UP_STEPS:]) * 1000


def ended(found: dict[str, Any]) -> str:
    """The time of a step, or how the run ended."""
    return "out of memory" if "out of memory" in found else f"{pace(found):.1f}"


def row(program: str, ratio: float, free: dict[str, Any]) -> list[str]:
    """A row of the table; `free` is the run without a limit."""
    limit = int(free["held"] / ratio)
    spilled = run(program, "cachalot", f"{EXPANDABLE},spill:{free['held'] / GIB:.1f}G", limit)
    others = [run(program, allocator, EXPANDABLE, limit) for allocator in ("torch", "cachalot")]
    cells = [program, f"1 / {ratio}", f"{limit / GIB:.2f}"]
    if "out of memory" in spilled:
        return [*cells, "", *map(ended, others), "out of memory", f"{pace(free):.1f}", "", "", ""]
    predicted = pace(free) + 2 * spilled["spilled"] / LINK * 1000
    cells += [f"{spilled['spilled'] / GIB:.2f}", *map(ended, others), f"{pace(spilled):.1f}", f"{pace(free):.1f}"]
    cells += [f"{pace(spilled) / pace(free):.2f}", f"{predicted:.1f}"]
    return [*cells, "equal" if spilled["losses"] == free["losses"] else "differ"]


def main() -> None:
    """The table."""
    out, *programs = sys.argv[1:]
    rows, table = [HEAD], ""
    for program in programs or PROGRAMS:
        free = run(program, "cachalot", EXPANDABLE)
        for ratio in RATIOS:
            rows.append(row(program, ratio, free))
            table = tables.write(Path(out) / "spill.csv", rows)
    print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
    else:
        main()
