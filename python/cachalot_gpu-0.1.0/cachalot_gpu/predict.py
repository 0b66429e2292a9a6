"""The memory of a training script before it runs, on a machine without a GPU.

    python -m cachalot_gpu.predict [--limit BYTES] [--policy A,B] [--config STRING] script.py [ARGUMENT ...]

The script trains a step or a few on the device ``"cuda"``, as on a GPU. PyTorch's FakeTensorMode runs
it: tensors have shapes and no values. Every request and free of their storages is replayed through
the exact policies of cachalot, of which ``caching`` is PyTorch's own allocator.

In a program, :func:`cachalot_gpu.torch.predict` predicts the memory of a function. On a machine without
a GPU, ``import cachalot_gpu.predict`` must come before ``import torch`` if PyTorch's build has CUDA.
"""

from __future__ import annotations

import argparse
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

from . import _no_gpu

_no_gpu.load()

from ._files import command_path  # noqa: E402
from .errors import CachalotError  # noqa: E402
from .torch._predict import (  # noqa: E402
    HOPPER_WORKSPACE,
    LEFT_OUT,
    OTHER_WORKSPACE,
    Prediction,
    Recorder,
    left_out,
    predict,
    record,
    replay,
)

__all__ = [
    "HOPPER_WORKSPACE",
    "LEFT_OUT",
    "OTHER_WORKSPACE",
    "Prediction",
    "Recorder",
    "left_out",
    "predict",
    "record",
    "replay",
]


def _arguments(arguments: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m cachalot_gpu.predict",
        description="Predict the peak of reserved memory of a training script, without a GPU.",
    )
    parser.add_argument("--limit", metavar="BYTES", help="the memory of the GPU: bytes, or a number with MiB or GiB")
    parser.add_argument("--policy", metavar="A,B", help="the policies; all but `planned` without this")
    beside = "a configuration besides the defaults"
    parser.add_argument("--config", metavar="STRING", action="append", default=[], help=beside)
    parser.add_argument("--json", action="store_true", help="print an object for each policy and configuration")
    parser.add_argument("--requests", metavar="FILE", help="write the requests for `cachalot predict` to a file")
    parser.add_argument(
        "--workspace",
        metavar="BYTES",
        type=int,
        default=HOPPER_WORKSPACE,
        help=f"the workspace of a cuBLAS handle: {HOPPER_WORKSPACE} on compute capability 9.0, "
        f"{OTHER_WORKSPACE} elsewhere",
    )
    parser.add_argument("script", help="the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the script")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Runs a script, prints the predictions, and returns the exit status of the command."""
    options = _arguments(arguments)
    sys.argv = [options.script, *options.arguments]
    sys.path.insert(0, str(Path(options.script).resolve().parent))
    recorder = record(lambda: runpy.run_path(options.script, run_name="__main__"), options.workspace)
    with tempfile.TemporaryDirectory() as folder:
        name = Path(options.script).stem
        file = Path(options.requests) if options.requests else Path(folder) / f"{name}.csv"
        file.write_text(recorder.lines())
        command = [command_path(), "predict", str(file)]
        command += [f"--limit={options.limit}"] if options.limit else []
        command += [f"--policy={options.policy}"] if options.policy else []
        command += [f"--config={config}" for config in options.config]
        command += ["--json"] if options.json else []
        status = subprocess.run(command, check=False).returncode
    if status == 0 and not options.json:
        print("\nLeft out:\n" + "\n".join(f"* {what}" for what in left_out()))
    return status


if __name__ == "__main__":
    try:
        _status = main(sys.argv[1:])
    except (CachalotError, OSError) as error:
        print(error, file=sys.stderr)
        _status = 2
    sys.stdout.flush()
    sys.stderr.flush()
    # The threads of the autograd engine can abort an orderly exit on a machine without a GPU.
    os._exit(_status)
