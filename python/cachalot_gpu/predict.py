"""The memory of a training script before it runs, on a machine without a GPU.

    python -m cachalot_gpu.predict [--gpu NAME] [--limit BYTES] [--policy A,B] [--config STRING]
        [--steps N] script.py [ARGUMENT ...]

The script trains on the device ``"cuda"``, as on a GPU, of which ``torch.cuda`` answers that it is
an H100. PyTorch's FakeTensorMode runs it: tensors of the device have shapes and no values. Every
request and free of their storages is replayed through the exact policies of cachalot, of which
``caching`` is PyTorch's own allocator. What the script prints goes to the standard error, and a
script that stops early is predicted up to there.

The exit status is 0 if the script fits into the GPU, 1 if it does not, 2 if it cannot be predicted,
and 3 if it stopped before its end and what it requested until then fits.

In a program, :func:`cachalot_gpu.torch.predict` predicts the memory of a function. On a machine
without a GPU, ``import cachalot_gpu.predict`` must come before ``import torch`` if PyTorch's build
has CUDA.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

from . import _no_gpu

_no_gpu.load()

from ._files import command_path  # noqa: E402
from .errors import CachalotError  # noqa: E402
from .torch._gpus import GPUS, HOPPER_WORKSPACE, OTHER_WORKSPACE, USUAL  # noqa: E402
from .torch._predict import (  # noqa: E402
    LEFT_OUT,
    Prediction,
    Recorder,
    left_out,
    predict,
    record,
    record_into,
    replay,
)
from .torch._stand_ins import Enough  # noqa: E402

__all__ = [
    "GPUS",
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


STEPS = 20
"""Batches of a loader without the option ``--steps``."""

STOPPED = 3
"""The exit status for a script that stopped before its end."""


def _arguments(arguments: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m cachalot_gpu.predict",
        description="Predict the peak of reserved memory of a training script, without a GPU.",
    )
    gpu = f"the GPU that the script finds, {USUAL} by default: {', '.join(GPUS)}"
    parser.add_argument("--gpu", metavar="NAME", default=USUAL, choices=GPUS, help=gpu)
    limit = "the memory, if it is not that of the GPU: bytes, or a number such as 80G"
    parser.add_argument("--limit", metavar="BYTES", help=limit)
    parser.add_argument("--policy", metavar="A,B", help="the policies; all but `planned` without this")
    beside = "a configuration besides the defaults"
    parser.add_argument("--config", metavar="STRING", action="append", default=[], help=beside)
    parser.add_argument("--batch", metavar="N", type=int, help="the batch, if it is not that of the first DataLoader")
    steps = (
        "batches of a loader after which a script goes on with what follows, and a third of the optimizer's steps "
        f"after which it ends, if it needs no more memory: {STEPS} by default; 0 runs the whole script"
    )
    parser.add_argument("--steps", metavar="N", type=int, default=STEPS, help=steps)
    parser.add_argument("--json", action="store_true", help="print an object for each policy and configuration")
    parser.add_argument("--requests", metavar="FILE", help="write the requests for `cachalot predict` to a file")
    workspace = (
        f"the workspace of a cuBLAS handle: {HOPPER_WORKSPACE} on compute capability 9.0, {OTHER_WORKSPACE} elsewhere"
    )
    parser.add_argument("--workspace", metavar="BYTES", type=int, help=workspace)
    parser.add_argument("script", help="the script")
    of_script = parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the script")
    # Otherwise a missing script is told as two missing arguments.
    of_script.required = False
    return parser.parse_args(arguments)


def _limit_bytes(options: argparse.Namespace) -> int:
    """Checks the options by a prediction of one request, before a script runs for minutes.

    Returns:
        the limit in bytes.

    Raises:
        CachalotError: the command refuses an option.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "one_request.csv"
        file.write_text("request,block,size,stream\na,1,1,0\n")
        done = subprocess.run([*_command(options, file), "--json"], capture_output=True, text=True, check=False)
    if not done.stdout:
        raise CachalotError(done.stderr.strip())
    limit: int = json.loads(done.stdout.splitlines()[0])["limit_bytes"]
    return limit


def _command(options: argparse.Namespace, file: Path) -> list[str]:
    """Returns the command that predicts a list of requests."""
    command = [command_path(), "predict", "--fail-on-oom", str(file)]
    gpu = GPUS[options.gpu]
    own = [f"--limit={options.limit}"]
    command += own if options.limit is not None else [f"--limit={gpu.total_bytes}", f"--device={gpu.name}"]
    command += [f"--batch={options.batch}"] if options.batch is not None else []
    command += [f"--policy={options.policy}"] if options.policy is not None else []
    return command + [f"--config={config}" for config in options.config]


@contextlib.contextmanager
def _output_to_errors() -> Iterator[None]:
    """Sends what is printed, by this process and by its children, to the standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _run(options: argparse.Namespace, recorder: Recorder, limit_bytes: int) -> str | None:
    """Runs the script. Returns where and why it stopped, or None if it ran to its end."""
    script = options.script
    try:
        with _output_to_errors():
            record_into(recorder, lambda: runpy.run_path(script, run_name="__main__"), limit_bytes)
    except Enough:
        print(
            f"\n{script} was ended after {recorder.steps} steps of its optimizer, of which the last {options.steps} "
            "needed no more memory: --steps 0 runs all of it",
            file=sys.stderr,
        )
        return None
    except SystemExit as end:
        return None if end.code in (None, 0) else f"ended with sys.exit({end.code!r})"
    except CachalotError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        traceback.print_exc()
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == script]
        line = f" at {script}:{own[-1].lineno}" if own else ""
        # Errors of fake tensors themselves, whose operation may be in any library.
        of_values = type(error).__module__ == "torch._subclasses.fake_tensor"
        why = ": a prediction runs on tensors without values, and this operation needs them" if of_values else ""
        return f"stopped{line} with {type(error).__name__}{why}"
    return None


def main(arguments: list[str]) -> int:
    """Runs a script, prints the predictions, and returns the exit status of the command."""
    options = _arguments(arguments)
    script = Path(options.script)
    if not script.is_file():
        raise CachalotError(f"{script}: no such script")
    limit_bytes = _limit_bytes(options)
    sys.argv = [options.script, *options.arguments]
    sys.path.insert(0, str(script.resolve().parent))
    recorder = Recorder(options.workspace, options.gpu, max(options.steps, 0))
    stopped = _run(options, recorder, limit_bytes)
    if stopped:
        print(f"\n{script} {stopped}", file=sys.stderr)
    if not recorder.events:
        raise CachalotError(
            f"{script} requested no memory of the device `cuda`: a prediction follows what a script does with "
            '`.to("cuda")` and `device="cuda"`, and torch.cuda.is_available() is True in it. Does it train on another '
            "device by default, or in another process?"
        )
    if stopped:
        print("The prediction covers what ran before", file=sys.stderr)
    options.batch = recorder.batch if options.batch is None else options.batch
    status = _report(options, recorder)
    return status or (STOPPED if stopped else 0)


def _report(options: argparse.Namespace, recorder: Recorder) -> int:
    """Prints the predictions, and returns the exit status of the command."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(options.requests) if options.requests else Path(folder) / f"{Path(options.script).stem}.csv"
        file.write_text(recorder.lines())
        command = _command(options, file)
        command += ["--json"] if options.json else []
        status = subprocess.run(command, check=False).returncode
    if status != 2 and not options.json:
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
