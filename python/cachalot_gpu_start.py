"""Puts cachalot in the place of PyTorch's CUDA allocator where ``CACHALOT=1`` is in the
environment, without a line in the program.

PyTorch calls :func:`start` at the end of ``import torch``: it is an entry point of the group
``torch.backends``. So a Python program without PyTorch does not even read this file. The module is
outside of the package, whose import takes time that a program without ``CACHALOT`` should not
spend.
"""

import os
import sys


def start() -> None:
    """Enables cachalot if the environment asks for it. No failure reaches the program: PyTorch
    keeps its own allocator, and a line on the standard error says why."""
    asked = os.environ.get("CACHALOT", "")
    if asked in ("", "0"):
        return
    try:
        if asked != "1":
            raise ValueError(f"CACHALOT is {asked!r}: expected 1 (on) or 0 (off)")
        from cachalot_gpu.torch import _environment

        _environment.enable()
    # A module that is damaged or missing is no reason to stop the program, either.
    except Exception as error:
        print(f"cachalot: PyTorch keeps its own allocator: {error}", file=sys.stderr)
