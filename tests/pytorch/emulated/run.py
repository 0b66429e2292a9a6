"""Runs tests on a PyTorch without a GPU, and skips those that come to a kernel: none is emulated.

    python run.py test_memory test_streams ...
"""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from types import TracebackType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

IN_PROCESSES_OF_THEIR_OWN = {"test_the_same_figures_as_under_pytorchs_allocator"}
"""Tests whose kernels run in processes of their own."""


NEEDS_KERNELS = ("no kernel image is available", "Offset increment outside graph capture")
"""What PyTorch says where a kernel would run. The second comes after a capture with a kernel, in which the random
numbers of PyTorch 2.11 stay."""


class WithoutKernels(unittest.TextTestResult):
    """A test that comes to a kernel counts as skipped."""

    def addError(
        self,
        test: unittest.TestCase,
        err: tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None],
    ) -> None:
        name = test.id().rpartition(".")[2]
        if any(text in str(err[1]) for text in NEEDS_KERNELS) or name in IN_PROCESSES_OF_THEIR_OWN:
            self.addSkip(test, "needs kernels")
        else:
            super().addError(test, err)


if __name__ == "__main__":
    runner = unittest.TextTestRunner(resultclass=WithoutKernels)
    unittest.main(module=None, argv=[sys.argv[0], *sys.argv[1:]], testRunner=runner)
