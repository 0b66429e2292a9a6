"""``cachalot run`` of the wheel, which finds its library beside the command, over the emulated driver."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import cachalot_gpu

WAYS = Path(__file__).resolve().parents[2] / "cli/tests/run/ways.py"
"""Prints whose functions a program finds: S for the library's, R for the driver's."""


@unittest.skipUnless("CACHALOT_LIBCUDA" in os.environ, "CACHALOT_LIBCUDA names no driver")
class Run(unittest.TestCase):
    """A Python program, started by both commands."""

    def test_a_program_gets_the_library_of_the_package(self) -> None:
        for command in ([cachalot_gpu.command_path()], [sys.executable, "-m", "cachalot_gpu"]):
            with self.subTest(command), tempfile.TemporaryDirectory() as folder:
                program = [*command, "run", "--", sys.executable, str(WAYS), "libcuda.so.1"]
                environment = os.environ | {"XDG_CACHE_HOME": folder}
                done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
                self.assertEqual((done.stdout, done.stderr, done.returncode), ("SRS SR\n", "", 0))


if __name__ == "__main__":
    unittest.main()
