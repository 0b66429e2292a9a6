"""The ``cachalot`` command that the wheel brings, as a script and as ``python -m cachalot_gpu``."""

from __future__ import annotations

import re
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

import cachalot_gpu
from cachalot_gpu import _files

TRACE = Path(__file__).resolve().parents[1] / "traces/mlp_seed.csv.gz"
SCRIPT = Path(sys.executable).parent / "cachalot"


def done(*command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Command(unittest.TestCase):
    """Both ways to call the command."""

    def test_the_script(self) -> None:
        self.assertEqual(cachalot_gpu.command_path(), str(SCRIPT))
        # A command that was built in a repository names the commit too.
        self.assertRegex(done(str(SCRIPT), "--version").stdout, rf"^cachalot {re.escape(cachalot_gpu.__version__)}( \(commit \w+\))?\n$")

    def test_the_module(self) -> None:
        module = sys.executable, "-m", "cachalot_gpu"
        for arguments in [("--help",), ("replay", "--check", str(TRACE)), ("plan", "/nowhere.csv")]:
            with self.subTest(arguments):
                of_script, of_module = done(str(SCRIPT), *arguments), done(*module, *arguments)
                self.assertEqual(of_module.returncode, of_script.returncode)
                if arguments[0] != "replay":  # whose table has times
                    self.assertEqual((of_module.stdout, of_module.stderr), (of_script.stdout, of_script.stderr))
        self.assertEqual(done(*module, "replay", "--check", str(TRACE)).returncode, 0)
        self.assertNotEqual(done(*module, "plan", "/nowhere.csv").returncode, 0)

    def test_a_command_that_pip_moved(self) -> None:
        # As `pip install --target` leaves it.
        moved = SCRIPT.parent.parent
        with (
            mock.patch("importlib.metadata.files", return_value=[]),
            mock.patch.object(_files, "_PACKAGE", moved / "x"),
        ):
            self.assertEqual(cachalot_gpu.command_path(), str(SCRIPT))

    def test_a_missing_command(self) -> None:
        with (
            mock.patch("importlib.metadata.files", return_value=[]),
            mock.patch.object(_files, "_PACKAGE", Path("/nowhere/cachalot_gpu")),
            self.assertRaisesRegex(
                cachalot_gpu.CachalotError, "not at /nowhere/bin/cachalot: install cachalot-gpu again"
            ),
        ):
            cachalot_gpu.command_path()


if __name__ == "__main__":
    unittest.main()
