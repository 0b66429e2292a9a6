"""Programs in processes of their own: a plug-in is there once in a process, and stays."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).parent
STAND_IN = HERE / "stand_in"


def environment(torch: Path = STAND_IN, **variables: str) -> dict[str, str]:
    """The environment of a program that finds the stand-in for PyTorch, and nothing of this shell's settings."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "CACHALOT_CONF"))}
    # The stand-in has no headers for the whole allocator.
    return own | {"PYTHONPATH": str(torch), "CACHALOT_TORCH_PLUGIN": "1"} | variables


def ran(program: str, torch: Path = STAND_IN, **variables: str) -> tuple[str, str]:
    """What a program prints, and what it says on the standard error; it must end well."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(
        command, env=environment(torch, **variables), capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise AssertionError(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout, done.stderr


def said(program: str, torch: Path = STAND_IN, **variables: str) -> str:
    """What a program prints on both outputs; it must end well."""
    return "".join(ran(program, torch, **variables))
