"""``python -m cachalot_gpu doctor``: what is installed, found, compatible and switched on, and what
to do.

Everything that can crash or take a GPU runs in another process.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

from . import _files, _library, errors
from ._settings import DISABLE, disabled

SWITCH = "CACHALOT"
"""The variable of the environment that enables cachalot without a line in the program."""

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""PyTorch's variable that keeps entry points such as cachalot's from being called."""

_TIMEOUT_S = 600

_TRIAL = """
import json, os, sys, warnings
answer = {}
def say(**found):
    answer.update(found)
    print("cachalot-doctor:" + json.dumps(answer), flush=True)
try:
    import torch
except ImportError as error:
    say(missing=str(error))
    sys.exit()
say(torch=torch.__version__, cuda=torch.version.cuda, home=os.path.dirname(torch.__file__))
import cachalot_gpu.torch
from cachalot_gpu.torch import _shim, _whole
say(enabled=cachalot_gpu.torch.enabled(), whole=_whole.in_place())
if _whole.in_place():
    say(piece=str(_shim.whole()))
say(gpus=torch.cuda.device_count())
if torch.cuda.device_count():
    properties = torch.cuda.get_device_properties(0)
    say(gpu=properties.name, bytes=properties.total_memory)
    block = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    say(served=cachalot_gpu.torch.memory_allocated() >= 1 << 20)
"""
"""What a program would do: enable cachalot by the environment, and request a megabyte."""


class Report:
    """The lines of the report, and what is to be done."""

    def __init__(self) -> None:
        self.remedies: list[str] = []

    def line(self, name: str, found: str, remedy: Optional[str] = None) -> None:
        """Prints a line, and keeps what is to be done about it."""
        print(f"{name:<10}{found}")
        if remedy:
            self.remedies.append(remedy)


def main() -> int:
    """Prints the report. Returns 0 if cachalot works with the installed PyTorch when it is switched
    on, 1 if not, and 2 if the installation itself is damaged."""
    report = Report()
    _about_package(report)
    if not _about_library(report):
        print(f"\n{report.remedies[-1]}")
        return 2
    _about_driver(report)
    trial = _trial()
    _about_torch(report, trial)
    _about_gpus(report, trial)
    _about_settings(report)
    _about_switch(report)
    works = bool(trial.get("enabled")) and trial.get("served", True)
    report.line("result", _result(trial, works))
    for remedy in report.remedies:
        print(f"to do: {remedy}")
    return 0 if works and not report.remedies else 1


def _about_package(report: Report) -> None:
    """Says which package runs under which Python."""
    from . import __version__

    report.line("cachalot", f"{__version__}, {Path(__file__).parent}")
    report.line("Python", f"{platform.python_version()}, {sys.executable}")
    try:
        report.line("command", _files.command_path())
    except errors.CachalotError as error:
        report.line("command", f"missing: {error}", "pip install --force-reinstall cachalot-gpu")


def _about_library(report: Report) -> bool:
    """Says whether the library can be loaded."""
    chosen = " (CACHALOT_LIBRARY)" if os.environ.get("CACHALOT_LIBRARY") else ""
    try:
        version = _library.version()
    except (OSError, errors.CachalotError) as error:
        remedy = f"unset CACHALOT_LIBRARY, which names {_files.LIBRARY}" if chosen else "install cachalot-gpu again"
        report.line("library", f"cannot be loaded{chosen}: {error}", remedy)
        return False
    report.line("library", f"{version}, {_files.LIBRARY}{chosen}")
    return True


def _about_driver(report: Report) -> None:
    """Says whether there is a driver, asked in another process: a process that has used the driver
    cannot pass it on to a child."""
    program = """
import ctypes, os
driver = ctypes.CDLL(os.environ.get("CACHALOT_LIBCUDA") or "libcuda.so.1")
version = ctypes.c_int()
code = driver.cuInit(0)
driver.cuDriverGetVersion(ctypes.byref(version))
print(f"cachalot-doctor:{code} {version.value}")
"""
    done = _run(program, dict(os.environ))
    said = _said(done)
    if said is None:
        reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        remedy = "install NVIDIA's driver, or in a container start it with --gpus all"
        report.line("driver", f"none: {reason.removeprefix('OSError: ')}", remedy)
        return
    code, version = map(int, said.split())
    text = f"for CUDA {version // 1000}.{version % 1000 // 10}"
    if code:
        report.line("driver", f"{text}, and cuInit fails with error {code}", "look at nvidia-smi: the driver does not start")
    elif version < 11040:
        report.line("driver", f"{text}, too old", "cachalot needs a driver for CUDA 11.4 or later")
    else:
        report.line("driver", text)


def _trial() -> dict[str, Any]:
    """Runs the trial in another process, and returns what it found, with how it ended."""
    environment = {name: value for name, value in os.environ.items() if name not in (DISABLE, AUTOLOAD)}
    # A failure on purpose leaves no file.
    done = _run(_TRIAL, environment | {SWITCH: "1", "CACHALOT_RECORDER": "files:0"})
    found: dict[str, Any] = json.loads(_said(done) or "{}")
    found["notes"] = [line.removeprefix("cachalot: ") for line in done.stderr.splitlines() if line.startswith("cachalot: ")]
    if done.returncode:
        name = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit status {done.returncode}"
        found["ended"] = f"{name}: {(done.stderr.strip().splitlines() or [''])[-1]}"
    return found


def _about_torch(report: Report, trial: dict[str, Any]) -> None:
    """Says which PyTorch there is, and in which way cachalot works with it."""
    if "torch" not in trial:
        reason = trial.get("missing") or trial.get("ended") or "no answer"
        report.line("PyTorch", f"cannot be imported: {reason}", "pip install torch")
        return
    build = f"{trial['torch']}, {trial['home']}"
    if trial["cuda"] is None:
        report.line("PyTorch", f"{build}, without CUDA", "install a build of PyTorch with CUDA")
        return
    report.line("PyTorch", build)
    if not trial.get("enabled"):
        reason = trial["notes"][-1] if trial["notes"] else trial.get("ended", "no reason given")
        report.line("interface", f"none: {reason}", "see the line above")
    elif not trial["whole"]:
        reason = trial["notes"][0] if trial["notes"] else "CACHALOT_TORCH_PLUGIN is set"
        report.line("interface", f"plug-in: {reason}")
    else:
        own = Path(trial["piece"]).parent == _files.PIECES
        report.line("interface", f"whole, {'in the package' if own else 'compiled here'}: {trial['piece']}")


def _about_gpus(report: Report, trial: dict[str, Any]) -> None:
    """Says which GPUs PyTorch finds, and whether cachalot serves them."""
    count = trial.get("gpus")
    if count is None:
        return
    if not count:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        said = "none" if hidden is None else f"none: CUDA_VISIBLE_DEVICES is {hidden!r}"
        report.line("GPUs", said, "a program without a GPU does not use cachalot")
    elif "served" in trial:
        served = "a request was served" if trial["served"] else "cachalot did not serve a request"
        report.line("GPUs", f"{count}: {trial['gpu']}, {trial['bytes'] / 2**30:.1f} GiB; {served}")
    else:
        report.line("GPUs", f"{count}; a request failed: {trial.get('ended', 'no answer')}", "see the line above")


def _about_settings(report: Report) -> None:
    """Says which settings count, and what is wrong with them."""
    from . import _settings

    names = ("CACHALOT_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    given = next((f"{name}={os.environ[name]}" for name in names if os.environ.get(name)), "the defaults")
    try:
        notes = _settings.notes(None)
    except errors.CachalotError as error:
        report.line("settings", f"{given}: {error}", f"correct {given.split('=')[0]}")
        return
    report.line("settings", "; ".join([given, *notes]))


def _about_switch(report: Report) -> None:
    """Says whether a program of this environment runs with cachalot."""
    value = os.environ.get(SWITCH, "")
    if disabled():
        report.line("switch", f"off: {DISABLE}={os.environ[DISABLE]}", f"unset {DISABLE}")
    elif os.environ.get(AUTOLOAD, "1") != "1":
        report.line("switch", f"off: {AUTOLOAD}={os.environ[AUTOLOAD]}", f"unset {AUTOLOAD}, or call enable()")
    elif value == "1":
        report.line("switch", f"on: {SWITCH}=1")
    elif value in ("", "0"):
        report.line("switch", f"off: {SWITCH}=1 switches it on, or cachalot_gpu.torch.enable()")
    else:
        report.line("switch", f"off: {SWITCH} is {value!r}", f"set {SWITCH}=1")


def _result(trial: dict[str, Any], works: bool) -> str:
    """Returns the result in words."""
    if not works:
        return "cachalot does not work here, and PyTorch keeps its own allocator"
    if not trial.get("gpus"):
        return "cachalot is ready, and there is no GPU"
    return "cachalot works here"


def _run(program: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a Python program in another process."""
    command = [sys.executable, "-c", program]
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no end after {_TIMEOUT_S} s")


def _said(done: subprocess.CompletedProcess[str]) -> Optional[str]:
    """Returns the last answer that a program has printed for the report."""
    mark = "cachalot-doctor:"
    lines = [line.removeprefix(mark) for line in done.stdout.splitlines() if line.startswith(mark)]
    return lines[-1] if lines else None
