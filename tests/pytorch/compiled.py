"""``torch.compile(mode="reduce-overhead")``, which captures graphs, under PyTorch's allocator and with cachalot in
its place.

    python compiled.py OUT.md

Each way has a process of its own: it says how many graphs were replayed and what the model computed, or with which
error it ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

WAYS = {
    # what it is called: whether cachalot is enabled, whether Inductor's trees of graphs are on
    "torch": (False, True),
    "cachalot, swap": (True, True),
    "cachalot, swap, `torch._inductor.config.triton.cudagraph_trees = False`": (True, False),
}


def run(swap: bool, trees: bool) -> None:
    """One way."""
    import torch

    if swap:
        import cachalot_gpu.torch

        cachalot_gpu.torch.enable("policy:caching", patch=True)
    import torch._inductor.config

    torch._inductor.config.triton.cudagraph_trees = trees
    replays = [0]
    replay = torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        replays[0] += 1
        replay(graph)

    torch.cuda.CUDAGraph.replay = counted
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
    inputs = [torch.randn(64, 512, device="cuda") for _ in range(8)]
    fast = torch.compile(model, mode="reduce-overhead")
    answer: dict[str, object] = {}
    try:
        with torch.no_grad():
            for x in inputs[:4]:
                torch.compiler.cudagraph_mark_step_begin()
                fast(x)
            torch.cuda.synchronize()
            began, total = time.perf_counter(), 0.0
            for x in inputs:
                torch.compiler.cudagraph_mark_step_begin()
                torch.testing.assert_close(fast(x).clone(), model(x), rtol=1e-3, atol=1e-3)
                total += fast(x).double().sum().item()
            answer = {"total": total.hex(), "seconds": time.perf_counter() - began}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    print(json.dumps(answer | {"replays": replays[0]}))


def main() -> None:
    """A line for each way."""
    lines = []
    for name, (swap, trees) in WAYS.items():
        command = [sys.executable, __file__, "--run", str(int(swap)), str(int(trees))]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ, check=False)
        said = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {"error": f"exit status {done.returncode}"}
        lines.append(f"- {name}: " + ", ".join(f"{key} {value}" for key, value in said.items()))
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        run(*(bool(int(flag)) for flag in sys.argv[2:]))
    else:
        main()
