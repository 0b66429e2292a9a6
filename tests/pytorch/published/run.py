"""Every script of this folder under every allocator, one process at a time.

    python run.py OUT [--dry]       # PYTHONPATH has cachalot_gpu; needs no network

OUT gets `runs.jsonl`, a line for each run, and `gpu.csv` or with `--dry` `held.csv`: the tables of
tests/results/published_bugs.md. At most eight minutes on an H200. `--dry` is for the emulated driver, which the loader
must find with the emulated runtime, as in tests/pytorch/emulated.sh, with CACHALOT_HOST_KERNELS for the graphs and
CACHALOT_EMU_MEMORY of 24 GiB.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import ALLOCATORS

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import tables  # noqa: E402

PATIENCE_S = 40
DRY_PATIENCE_S = 300
ERROR = re.compile(r"\s*(what\(\)|[\w.]*Error):")
ALL = tuple(ALLOCATORS)
POOLS = ("native", "expandable", "cachalot")
# The report, what is run, the script with its arguments, and the allocators. A pool needs PyTorch's own allocator.
CASES: list[tuple[str, str, list[str], tuple[str, ...]]] = [
    ("vLLM 48680, 49151", "weights replaced by larger ones", ["loading.py"], ALL),
    ("", "in a pool", ["loading.py", "pool"], POOLS),
    ("", "in a tag", ["loading.py", "tag"], ("cachalot",)),
    ("", "in a pool, two streams, four graphs alive", ["loading.py", "pool", "streams", "graphs"], POOLS),
    ("", "in a tag, two streams, a model of 4 GiB asleep", ["loading.py", "tag", "streams", "sleeping"], ("cachalot",)),
    ("vLLM 43951, pytorch 159674", "growing buffers in a pool", ["stranded_pool.py"], POOLS),
    ("pytorch 176439", "an idle symmetric buffer", ["symmetric.py"], POOLS),
    ("sglang 8538, 35375", "eight idle graphs and sampling", ["idle_graphs.py"], ALL),
    ("torchtitan 2581", "offload that reuses pinned memory", ["offload.py"], ALL),
    ("LBANN 380, rmm 2366", "memory freed after the end of `main`", ["ends.py"], ALL),
    ("CUDA.jl 2898, 3118", "cached memory reclaimed", ["reclaim.py"], ALL),
]
# Decided by the progress of streams, or by memory of the driver in a capture: not on the emulated driver.
GPU_ONLY = {("offload.py", allocator) for allocator in ALL} | {("idle_graphs.py", "cudaMallocAsync")}


def run(script: list[str], allocator: str, dry: bool) -> dict[str, Any]:
    """Runs one script in a process of its own."""
    if dry and (script[0], allocator) in GPU_ONLY:
        return {"script": " ".join(script), "allocator": allocator, "answer": "needs a GPU"}
    command = [sys.executable, "-B", str(HERE / script[0]), allocator, *script[1:], *(["--dry"] if dry else [])]
    began, patience = time.monotonic(), DRY_PATIENCE_S if dry else PATIENCE_S
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False)
        lines = [line for line in finished.stdout.splitlines() if line.startswith("{")]
        errors = finished.stderr.strip().splitlines()
        # An abort prints a list of calls behind the error.
        error = next((line for line in reversed(errors) if ERROR.match(line)), "".join(errors[-1:]))
        result = json.loads(lines[-1]) if lines else {"answer": f"failed: {error[:160]}"}
        if finished.returncode:
            result["answer"] = f"{result['answer']}; ends with status {finished.returncode}"
    except subprocess.TimeoutExpired:
        result = {"answer": f"no end after {patience} s"}
    return {"script": " ".join(script), "allocator": allocator, "s": round(time.monotonic() - began, 1), **result}


def main() -> None:
    out, dry = Path(sys.argv[1]), "--dry" in sys.argv
    rows = [["report", "program", "allocator", "peak, GiB", "at the end, GiB", *([] if dry else ["ms"]), "answer"]]
    with (out / "runs.jsonl").open("w", encoding="utf-8") as log:
        for report, program, script, allocators in CASES:
            for number, allocator in enumerate(allocators):
                result = run(script, allocator, dry)
                print(json.dumps(result), file=log, flush=True)
                print(result, flush=True)
                names = [report, program] if number == 0 else ["", ""]
                figures = [f"{result[key]:.2f}" if key in result else "—" for key in ("peak_gib", "end_gib")]
                took = [] if dry else [f"{result['ms']:.0f}" if "ms" in result else "—"]
                rows.append([*names, allocator, *figures, *took, result["answer"]])
    print(tables.write(out / ("held.csv" if dry else "gpu.csv"), rows))


if __name__ == "__main__":
    main()
