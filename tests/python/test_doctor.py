"""``python -m cachalot_gpu doctor`` on set-ups that work, and on broken ones."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from children import STAND_IN, environment


class Doctor(unittest.TestCase):
    """The stand-in for PyTorch has no tensors, so the emulated GPU is hidden but where a test needs it."""

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        os.environ["CACHALOT_CACHE"] = str(cls.folder / "cache")

    def looked(self, torch: Path = STAND_IN, **variables: str) -> tuple[int, dict[str, str], list[str]]:
        """The exit status, the lines by their names, and what is to be done."""
        command = [sys.executable, "-m", "cachalot_gpu", "doctor"]
        given = environment(torch, **variables)
        done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.stderr, "")
        lines = [line for line in done.stdout.splitlines() if line and not line.startswith("to do: ")]
        to_do = [line.removeprefix("to do: ") for line in done.stdout.splitlines() if line.startswith("to do: ")]
        return done.returncode, {line[:10].strip(): line[10:] for line in lines}, to_do

    def without_gpu(self) -> Path:
        """A stand-in for PyTorch that finds no GPU."""
        python = self.folder / "none"
        if not python.exists():
            (python / "torch/cuda").mkdir(parents=True)
            for file in STAND_IN.rglob("*.py"):
                text = file.read_text().replace("devices = 2", "devices = 0")
                (python / file.relative_to(STAND_IN)).write_text(text)
        return python

    def test_a_machine_without_a_gpu(self) -> None:
        status, lines, to_do = self.looked(self.without_gpu())
        self.assertEqual((status, lines["GPUs"]), (1, "none"))
        self.assertRegex(lines["PyTorch"], r"^2\.11\.0\+cu130, ")
        self.assertRegex(lines["interface"], "^plug-in: ")
        self.assertRegex(lines["driver"], r"^for CUDA 13\.\d$")
        self.assertRegex(lines["switch"], "^off: CACHALOT=1 switches it on")
        self.assertEqual(lines["result"], "cachalot is ready, and there is no GPU")
        self.assertEqual(to_do, ["a program without a GPU does not use cachalot"])
        self.assertEqual(len(lines), 11)

    def test_a_request_that_fails(self) -> None:
        status, lines, _ = self.looked()
        self.assertEqual(status, 1)
        self.assertRegex(lines["GPUs"], r"^2; a request failed: exit status 1: AttributeError")

    def test_no_driver(self) -> None:
        status, lines, to_do = self.looked(self.without_gpu(), CACHALOT_LIBCUDA="/nowhere/libcuda.so.1")
        self.assertEqual(status, 1)
        self.assertRegex(lines["driver"], "^none: /nowhere/libcuda")
        self.assertRegex(to_do[0], "install NVIDIA's driver")

    def test_an_old_driver(self) -> None:
        _, lines, to_do = self.looked(self.without_gpu(), CACHALOT_EMU_DRIVER_VERSION="11030")
        self.assertEqual(lines["driver"], "for CUDA 11.3, too old")
        self.assertIn("cachalot needs a driver for CUDA 11.4 or later", to_do)

    def test_no_pytorch(self) -> None:
        status, lines, to_do = self.looked(self.folder)
        self.assertEqual((status, to_do), (1, ["pip install torch"]))
        self.assertRegex(lines["PyTorch"], "cannot be imported: No module named 'torch'")

    def test_a_pytorch_without_cuda(self) -> None:
        python = self.folder / "processor"
        (python / "torch").mkdir(parents=True)
        (python / "torch/__init__.py").write_text(
            "import types\n__version__ = '2.11.0+cpu'\nversion = types.SimpleNamespace(cuda=None)\n"
        )
        status, lines, to_do = self.looked(python)
        self.assertEqual((status, to_do), (1, ["install a build of PyTorch with CUDA"]))
        self.assertRegex(lines["PyTorch"], r"^2\.11\.0\+cpu, .*, without CUDA$")

    def test_a_pytorch_that_crashes(self) -> None:
        python = self.folder / "crashes"
        (python / "torch").mkdir(parents=True)
        (python / "torch/__init__.py").write_text("import os\nos.abort()\n")
        status, lines, _ = self.looked(python)
        self.assertEqual(status, 1)
        self.assertRegex(lines["PyTorch"], "cannot be imported: SIGABRT")

    def test_wrong_settings(self) -> None:
        status, lines, to_do = self.looked(self.without_gpu(), CACHALOT_CONF="policy:nonsense")
        self.assertEqual(status, 1)
        self.assertRegex(lines["settings"], "^CACHALOT_CONF=policy:nonsense: .*nonsense")
        self.assertRegex(lines["interface"], "^none: PyTorch keeps its own allocator: ")
        self.assertIn("correct CACHALOT_CONF", to_do)

    def test_the_switch(self) -> None:
        for variables, line in [
            ({"CACHALOT": "1"}, "on: CACHALOT=1"),
            ({"CACHALOT": "yes"}, "off: CACHALOT is 'yes'"),
            ({"CACHALOT": "1", "CACHALOT_DISABLE": "1"}, "off: CACHALOT_DISABLE=1"),
            ({"CACHALOT": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "off: TORCH_DEVICE_BACKEND_AUTOLOAD=0"),
        ]:
            with self.subTest(variables):
                self.assertEqual(self.looked(self.without_gpu(), **variables)[1]["switch"], line)

    def test_a_library_that_cannot_be_loaded(self) -> None:
        status, lines, _ = self.looked(CACHALOT_LIBRARY="/etc/passwd")
        self.assertEqual(status, 2)
        self.assertRegex(lines["library"], r"cannot be loaded \(CACHALOT_LIBRARY\): ")


if __name__ == "__main__":
    unittest.main()
