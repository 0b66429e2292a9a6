"""Predictions of `cachalot_gpu.predict` beside the peaks that xMem's authors measured on two GPUs,
and beside the estimates of xMem, DNNMem and SchedTune in the same files.

    predict_xmem.py FILES OUT

FILES is a folder with `evaluation_result.json` files of github.com/Stone-ResearchLife/xMem
(`plot/data`), at any depth. They are not ours to pass on. Every row of a convolutional model is
predicted, one at a time; the rows of other models are counted. Needs no GPU. `cachalot_gpu` must be
installed for this interpreter, with PyTorch and torchvision.

The program of a row is written anew from what is published: a model of torchvision, random images of
the size of the row, cross entropy, an optimiser with a learning rate of 0.001 and PyTorch's other
defaults, a StepLR scheduler, and gradients cleared at the start of each iteration.
"""

import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import tables

MODELS = {
    "VGG11": "vgg11()",
    "VGG16": "vgg16()",
    "VGG19": "vgg19()",
    "ResNet50": "resnet50()",
    "ResNet101": "resnet101()",
    "ResNet152": "resnet152()",
    "MobileNetV2": "mobilenet_v2()",
    "MobeNetV3Small": "mobilenet_v3_small(num_classes=10)",
    "MobeNetV3Large": "mobilenet_v3_large(num_classes=10)",
    "MnasNet": "mnasnet1_0(num_classes=10)",
    "ConvNeXtTiny": "convnext_tiny()",
    "ConvNeXtBase": "convnext_base()",
    "RegNetX400MF": "regnet_x_400mf()",
    "RegNetY400MF": "regnet_y_400mf()",
}
"""The models of torchvision by xMem's names, two of which are misspelt there."""

GPUS = {"NVIDIA GeForce RTX 3060": "RTX3090", "NVIDIA GeForce RTX 4060": "RTX4090"}
"""The GPU of the same compute capability that `--gpu` knows."""

CONTEXT_BYTES = 256 << 20
"""What of a GPU's memory is not left to the allocator: the context and the display. The two cards
report 12,037 and 7,933 MiB, and the programs that ran out of memory got 270 to 290 MiB less."""

TOOLS = {"solution": "xMem", "DNNmem": "DNNMem", "SchedTune": "SchedTune"}
"""The tools by their names in the files."""

PROGRAM = """\
import torch
import torchvision.models as models

model = models.{model}.to("cuda").train()
optimizer = torch.optim.{optimiser}(model.parameters(), lr=0.001)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
criterion = torch.nn.CrossEntropyLoss()
for _ in range({iterations}):
    images, targets = torch.rand({batch}, 3, {height}, {width}), torch.randint(0, 10, ({batch},))
    optimizer.zero_grad()
    images, targets = images.to("cuda"), targets.to("cuda")
    outputs = model(images)
    loss = criterion(outputs, targets)
    loss.backward()
    optimizer.step()
    _, best = torch.max(outputs, 1)
    scheduler.step()
"""


def predict(info):
    """Predicts the program of a row."""
    height, width, _ = info["input_size"]
    program = PROGRAM.format(
        model=MODELS[info["model"]],
        optimiser=info["optimiser"],
        batch=info["batch_size"],
        # Four for the three that are asked for, since the loop ends after the iteration of that number.
        iterations=info["target_iteration"] + 1,
        height=height,
        width=width,
    )
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "program.py")
        script.write_text(program, encoding="utf-8")
        command = [sys.executable, "-m", "cachalot_gpu.predict", "--policy=caching", "--json"]
        command += [f"--gpu={GPUS[info['gpu_name']]}", f"--limit={info['total_gpu_memory'] - CONTEXT_BYTES}"]
        # As published, cuBLAS has no workspace.
        environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":0:0", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, str(script)], capture_output=True, text=True, check=False, env=environment
        )
    if not done.stdout:
        return {"refused": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return json.loads(done.stdout.splitlines()[0])


def rows(folder):
    """Returns the rows that are predicted, the right answer of each and the estimates of the tools, and
    the number of the others."""
    found, others = [], 0
    for file in sorted(folder.rglob("evaluation_result.json")):
        row = json.loads(file.read_text(encoding="utf-8"))
        if row["train info"]["model"] in MODELS and row["train info"]["gpu_name"] in GPUS:
            found.append(row)
        else:
            others += 1
    return found, others


def summary(name, errors, answers):
    """Returns the figures of a tool: errors of the peak where the program ran, and right answers to
    whether it runs."""
    within = [sum(error <= bound for error in errors) / len(errors) * 100 for bound in (0.1, 0.2)]
    figures = [statistics.median(errors) * 100, statistics.mean(errors) * 100, max(errors) * 100, *within]
    return [name, str(len(errors)), *(f"{figure:.1f}" for figure in figures), f"{sum(answers)} of {len(answers)}"]


def mib(count):
    """Formats bytes as MiB."""
    return f"{count / 2**20:.0f}"


def compare(row, predicted):
    """Returns the estimates of every tool for a row: bytes, and whether the program does not fit."""
    estimates = {"cachalot": (predicted["peak_reserved_bytes"], predicted["ooms"] > 0)}
    return estimates | {TOOLS[tool]: (row[tool]["memory"], row[tool]["oom"]) for tool in TOOLS}


def cell(estimate, truth):
    """Formats an estimate beside the truth."""
    count, fails = estimate
    if truth["real_oom"]:
        return "does not fit" if fails else "fits"
    return f"{(count / truth['ground'] - 1) * 100:+.1f}" + (" (does not fit)" if fails else "")


def write(out, done, seconds, others):
    """Writes the tables of the rows so far."""
    names = ["cachalot", *TOOLS.values()]
    table, figures = [], []
    for row, estimates in done:
        info, truth = row["train info"], row["solution"]
        measured = "out of memory" if truth["real_oom"] else mib(truth["ground"])
        gpu = info["gpu_name"].removeprefix("NVIDIA GeForce ")
        what = [info["model"], info["optimiser"], str(info["batch_size"]), gpu, measured]
        table.append([*what, *(cell(estimates[name], truth) for name in names)])
    for name in names:
        truths = [(estimates[name], row["solution"]) for row, estimates in done]
        errors = [abs(count / truth["ground"] - 1) for (count, _), truth in truths if not truth["real_oom"]]
        answers = [fails == truth["real_oom"] for (_, fails), truth in truths]
        figures.append(summary(name, errors or [0.0], answers))
    titles = ["model", "optimiser", "batch", "GPU", "measured, MiB", *(f"{name}, %" for name in names)]
    tables.write(out / "rows.csv", [titles, *sorted(table)])
    titles = ["tool", "rows", "median, %", "mean, %", "worst, %", "within 10 %, %", "within 20 %, %"]
    tables.write(out / "summary.csv", [[*titles, "right whether it fits"], *figures])
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    )
    head = [
        ["what", "is"],
        ["GPUs of the measurements", ", ".join(GPUS)],
        ["PyTorch of the measurements", "2.6.0 with CUDA 12.4, by xMem's README"],
        ["rows", f"{len(done)}, and {others} of other models or GPUs"],
        ["seconds of a prediction", f"{statistics.median(seconds):.0f} (median)"],
        ["PyTorch of the predictions", version("torch")],
        ["torchvision", version("torchvision")],
        ["commit", commit.stdout.strip()],
        ["date", datetime.datetime.now(datetime.timezone.utc).date().isoformat()],
        ["command", "`python3 tests/pytorch/predict_xmem.py FILES tests/results/predict_xmem`"],
    ]
    tables.write(out / "head.csv", head)


def main(folder, out):
    """Predicts every row, and writes the tables after each."""
    found, others = rows(folder)
    done, seconds = [], []
    for row in found:
        info = row["train info"]
        start = time.monotonic()
        predicted = predict(info)
        seconds.append(time.monotonic() - start)
        if "refused" in predicted:
            sys.exit(f"{info['model']}: {predicted['refused']}")
        done.append((row, compare(row, predicted)))
        write(out, done, seconds, others)
        print(info["model"], info["optimiser"], info["batch_size"], f"{seconds[-1]:.0f} s", flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
