"""Tests that run under one configuration after another, each in a separate process, because a process has one allocator."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
from collections.abc import Sequence

import torch

VARIABLE = "CACHALOT_TEST_CONFIG"
#: The configuration of this process, or nothing in the process that starts the others.
CONFIG = os.environ.get(VARIABLE, "")


def used() -> int:
    """Bytes of the device that are in use, as the driver counts them."""
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def run(file: str, default: Sequence[str]) -> None:
    """Runs the tests of a file, and ends the process: under this process's configuration if it has one, else under each that the
    arguments name, else under the default ones."""
    if CONFIG:
        unittest.main(verbosity=2)
    failed = 0
    for config in sys.argv[1:] or default:
        print(f"-- {config}", flush=True)
        failed |= subprocess.run([sys.executable, file], env=os.environ | {VARIABLE: config}, check=False).returncode
    sys.exit(failed != 0)
