"""The sentences of a build where a tool is missing or fails."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "python"


class Build(unittest.TestCase):
    """Each test is a ``pip wheel`` that ends before a compiler runs."""

    def fails(self, *wanted: str, **variables: str) -> None:
        """Builds the wheel, which fails with these sentences and without a trace."""
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", folder]
            done = subprocess.run(
                [*command, str(PACKAGE)], env=os.environ | variables, capture_output=True, text=True, check=False
            )
        said = done.stdout + done.stderr
        self.assertNotEqual(done.returncode, 0, said)
        for sentence in wanted:
            self.assertIn(sentence, said)
        self.assertNotIn("Traceback", said)

    def test_without_cargo(self) -> None:
        self.fails("error: cachalot-gpu is built by cargo, which is missing: install Rust ", PATH="/nowhere")

    def test_without_a_compiler(self) -> None:
        self.fails(
            "error: cachalot-gpu is built by a C++17 compiler, and there is no /nowhere/c++: install g++, or set CXX",
            CXX="/nowhere/c++",
        )

    def test_a_compiler_that_fails(self) -> None:
        # Any file stands for the compiled libraries and the command.
        self.fails(
            "error: the C++ compiler failed with exit status 1: false ",
            CXX="false",
            CACHALOT_LIBRARY=__file__,
            CACHALOT_COMMAND=__file__,
            CACHALOT_FRONT=__file__,
            CACHALOT_EMULATED=str(PACKAGE),
        )


if __name__ == "__main__":
    unittest.main()
