"""Measures moves of memory to the host and back, and the state of an optimizer on the host.

    python spilled.py OUT

Needs a GPU and about two minutes; `tests/pytorch/run.sh` says how cachalot gets onto the path. OUT gets spilled_moves.csv
and spilled_optimizer.csv. Each run is a separate process. *Predicted*: for a move, the time in which the link carries the
bytes, and 0.27 s a GiB more where pages of the host are made; for a step, the step with the state on the device, and the
time in which the link carries the state twice, once read and once written.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tables

GIB = 1 << 30
# The rate of the link of an H200, in bytes a second, and the time in which a GiB of pages of the host is made.
LINK = 52e9
MAKE_S = 0.27
MOVED_GIB = 4
WARM_UP_STEPS = 4
STEPS = 10
PATIENCE_S = 120
CONFIG = "expandable_segments:True,spill:16G"
MOVES = ["to the host, pages made", "back", "to the host again", "back again"]
STATES = {"device": "on the device", "spilled": "`spilled()` in the first step", "advised": "`advise(…, \"cold\")` after it"}
HEAD_OF_MOVES = ["move", "GiB", "ms a GiB", "predicted, ms", "sum of the tensor, ms", "contents"]
HEAD_OF_STATES = ["state of the optimizer", "GiB on the host", "ms a step", "predicted, ms", "GiB on the GPU", "losses"]


def timed(act: Callable[[], Any]) -> tuple[Any, float]:
    """What `act` returns, and its seconds with those of the GPU."""
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    result = act()
    torch.cuda.synchronize()
    return result, time.perf_counter() - begin


def moves() -> list[dict[str, Any]]:
    """Moves a tensor there and back, twice."""
    import cachalot_gpu.torch
    import torch

    cachalot_gpu.torch.enable(CONFIG)
    tensor = torch.arange(MOVED_GIB * GIB // 4, dtype=torch.int32, device="cuda")
    wanted = tensor.sum().item()
    found = []
    for number, _ in enumerate(MOVES):
        advice = "hot" if number % 2 else "cold"
        moved, seconds = timed(lambda advice=advice: cachalot_gpu.torch.advise(tensor, advice))
        total, summed = timed(lambda: tensor.sum().item())
        found.append({"bytes": moved, "seconds": seconds, "sum": summed, "equal": total == wanted})
    return found


def training(state: str) -> dict[str, Any]:
    """Trains a model of 400 million parameters with Adam, whose state lies as `state` says."""
    import cachalot_gpu.torch
    import torch

    cachalot_gpu.torch.enable(CONFIG)
    torch.manual_seed(7)
    layers = [torch.nn.Linear(5120, 5120) for _ in range(16)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    batch = torch.randn(256, 5120, device="cuda")
    found: dict[str, Any] = {"seconds": [], "losses": []}

    def step() -> float:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        if state == "spilled":
            with cachalot_gpu.torch.spilled():
                optimizer.step()
        else:
            optimizer.step()
        return loss.item()

    for number in range(WARM_UP_STEPS + STEPS):
        loss, seconds = timed(step)
        found["losses"].append(loss)
        found["seconds"].append(seconds)
        if number == 0 and state == "advised":
            for of_parameter in optimizer.state.values():
                cachalot_gpu.torch.advise(of_parameter["exp_avg"], "cold")
                cachalot_gpu.torch.advise(of_parameter["exp_avg_sq"], "cold")
    found["spilled"] = cachalot_gpu.torch.statistics()["pages.spilled_bytes"]
    found["held"] = torch.cuda.memory_reserved() - found["spilled"]
    return found


def run(*arguments: str) -> Any:
    """What a child says."""
    variables = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    command = [sys.executable, __file__, "--child", *arguments]
    done = subprocess.run(
        command, env=os.environ | variables, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def table_of_moves(out: Path) -> str:
    """Writes the table of the moves."""
    rows = [HEAD_OF_MOVES]
    for name, found in zip(MOVES, run("moves"), strict=True):
        gib = found["bytes"] / GIB
        predicted = GIB / LINK + (MAKE_S if "made" in name else 0)
        rows.append([name, f"{gib:.2f}", f"{found['seconds'] / gib * 1000:.1f}", f"{predicted * 1000:.1f}"])
        rows[-1] += [f"{found['sum'] * 1000:.1f}", "equal" if found["equal"] else "differ"]
    return tables.write(out / "spilled_moves.csv", rows)


def table_of_states(out: Path) -> str:
    """Writes the table of the optimizer's state."""
    rows = [HEAD_OF_STATES]
    device = run("training", "device")

    def pace(found: dict[str, Any]) -> float:
        return statistics.median(found["seconds"][WARM_UP_STEPS:]) * 1000

    for state, name in STATES.items():
        found = device if state == "device" else run("training", state)
        predicted = pace(device) + 2 * found["spilled"] / LINK * 1000
        rows.append([name, f"{found['spilled'] / GIB:.2f}", f"{pace(found):.1f}", f"{predicted:.1f}"])
        rows[-1] += [f"{found['held'] / GIB:.2f}", "equal" if found["losses"] == device["losses"] else "differ"]
    return tables.write(out / "spilled_optimizer.csv", rows)


def main() -> None:
    """Both tables."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    print(table_of_moves(out))
    print(table_of_states(out))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        kind, *more = sys.argv[2:]
        print(json.dumps(moves() if kind == "moves" else training(*more)), flush=True)
    else:
        main()
