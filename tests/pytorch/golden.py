"""The training program of tests/golden/training_three_epochs.csv, run for real through the plug-in.

    python golden.py OUT.csv

What is compared, at each of the 42 stages: bytes allocated, the most so far, bytes reserved, the most so far. The
figures were published for an A800, whose matrix library works in 8,519,680 bytes. So the program runs twice: with
the library told to take as much here (the published figures, to the byte), and as this GPU does it by itself. For
that the published program is replayed on a simulated device with the other size of
those two requests, and nothing else changed: those figures, to the byte.
"""

from __future__ import annotations

import csv
import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import tables

PROGRAM = Path(__file__).parent.parent / "golden" / "training_three_epochs.csv"
PUBLISHED_WORKSPACE = 8_519_680
PUBLISHED_SETTING = ":4096:2:16:8"
Stages = list[tuple[str, list[int]]]
KEYS = [
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "reserved_bytes.all.current",
    "reserved_bytes.all.peak",
]


def program() -> list[list[str]]:
    """The lines of the published program."""
    with PROGRAM.open(newline="") as file:
        return [row for row in csv.reader(file) if not row[0].startswith("#")]


def published() -> Stages:
    """The published figures."""
    return [(row[1], [int(field) for field in row[2:]]) for row in program() if row[0] == "stage"]


class Options(ctypes.Structure):
    """``cachalot_options``."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("flags", ctypes.c_uint32),
        ("device_count", ctypes.c_uint32),
        ("devices", ctypes.c_void_p),
        ("contexts", ctypes.c_void_p),
        ("config", ctypes.c_char_p),
        ("limit_bytes", ctypes.c_uint64),
        ("simulated_bytes", ctypes.c_uint64),
    ]


def replayed(workspace: int) -> Stages:
    """The figures of the published program on a simulated device, with another size for the matrix library's
    workspaces."""
    import cachalot_gpu

    library = ctypes.CDLL(cachalot_gpu.library_path())
    allocator, block, value = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int64()
    options = Options(struct_size=ctypes.sizeof(Options), flags=1, simulated_bytes=80 << 30)
    assert library.cachalot_create(ctypes.byref(options), ctypes.byref(allocator)) == 0
    blocks, stages = {}, []
    for what, *fields in program():
        if what == "alloc":
            size = workspace if int(fields[1]) == PUBLISHED_WORKSPACE else int(fields[1])
            assert library.cachalot_malloc(allocator, 0, ctypes.c_size_t(size), None, ctypes.byref(block)) == 0
            blocks[fields[0]] = block.value
        elif what == "free":
            assert library.cachalot_free(allocator, ctypes.c_void_p(blocks.pop(fields[0]))) == 0
        elif what == "empty_cache":
            assert library.cachalot_empty_cache(allocator, 0) == 0
        else:
            figures = []
            for key in KEYS:
                assert library.cachalot_find_statistic(allocator, 0, key.encode(), ctypes.byref(value)) == 0
                figures.append(value.value)
            stages.append((fields[0], figures))
    return stages


def run() -> None:
    """The program itself. Says its stages, and how much the matrix library asked for, as JSON."""
    import torch
    from torch import nn

    import cachalot_gpu.torch

    cachalot_gpu.torch.enable("policy:caching", patch=True)
    stages: Stages = []

    def stage(label: str) -> None:
        stats = torch.cuda.memory_stats() or dict.fromkeys(KEYS, 0)
        stages.append((label, [stats[key] for key in KEYS]))

    sizes = (1536, 2048, 3072, 4096)
    stage("Before Init Model")
    layers = [nn.Linear(a, b, bias=False).cuda() for a, b in zip(sizes, sizes[1:])]
    stage("After Init Model")
    stage("Before Construct Data")
    x = torch.randn(1024, sizes[0]).cuda()
    y = torch.randint(0, sizes[-1], (1024,)).cuda()
    stage("After Construct Data")
    stage("Before Init Optimizer")
    weights = [weight for layer in layers for weight in layer.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=0.005)
    stage("After Init Optimizer")

    def model(at: str) -> torch.Tensor:
        first = layers[0](x)
        stage(at + "After layer1")
        second = layers[1](first)
        stage(at + "After layer2")
        out = layers[2](second)
        stage(at + "After layer3")
        return out

    for epoch in (1, 2, 3):
        at = f"Epoch {epoch} "
        stage(at + "Before Optimizer Zero Grad")
        optimizer.zero_grad()
        stage(at + "After Optimizer Zero Grad")
        stage(at + "Before Forward")
        out = model(at)
        stage(at + "Before Compute Loss")
        loss = nn.functional.cross_entropy(out, y)
        stage(at + "After Compute Loss")
        stage(at + "Before Backward")
        loss.backward()
        stage(at + "After Backward")
        stage(at + "Before Optimizer Step")
        optimizer.step()
        stage(at + "After Optimizer Step")
        torch.cuda.empty_cache()
    print(json.dumps(stages))


def measured(setting: str | None) -> Stages:
    """The stages of a run in a process of its own."""
    environment = dict(os.environ)
    environment.pop("CUBLAS_WORKSPACE_CONFIG", None)
    if setting:
        environment["CUBLAS_WORKSPACE_CONFIG"] = setting
    done = subprocess.run(
        [sys.executable, __file__, "--run"], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return [(label, figures) for label, figures in json.loads(done.stdout.splitlines()[-1])]


def compared(name: str, wanted: Stages, got: Stages) -> str:
    """A line about a run, with each difference."""
    assert [label for label, _ in wanted] == [label for label, _ in got]
    wrong = [
        f"{label}: {figures} instead of {others}"
        for (label, others), (_, figures) in zip(wanted, got)
        if figures != others
    ]
    return "\n".join(
        [f"- {name}: {len(wanted) - len(wrong)} of {len(wanted)} stages equal in all four figures", *wrong]
    )


def main() -> None:
    """Both runs, and what came of them."""
    alike, own = measured(PUBLISHED_SETTING), measured(None)
    # The first layer's output, and the workspace.
    first = dict(own)["Epoch 1 After layer1"][0] - dict(own)["Epoch 1 Before Forward"][0]
    workspace = first - 1024 * 2048 * 4
    lines = [
        compared(
            f"with `CUBLAS_WORKSPACE_CONFIG={PUBLISHED_SETTING}`, against the published figures", published(), alike
        ),
        compared(
            f"without, against the published program with workspaces of {workspace:,} bytes", replayed(workspace), own
        ),
    ]
    rows = [["stage", "published", "here, same workspace", "here, by itself", "replayed with that workspace"]]
    for row in zip(published(), alike, own, replayed(workspace)):
        rows.append([row[0][0], *(" ".join(f"{figure:,}" for figure in figures) for _, figures in row)])
    tables.write(Path(sys.argv[1]), rows)
    print("\n".join(lines))
    if alike != published() or own != replayed(workspace):
        raise SystemExit(1)


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        run()
    else:
        main()
