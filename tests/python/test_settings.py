"""``cachalot_gpu.check()``, and an environment without PyTorch."""

from __future__ import annotations

import re
import unittest
from pathlib import Path

from children import said

NO_TORCH = Path("/nowhere")


class Check(unittest.TestCase):
    """Each program is a process without PyTorch and without a driver."""

    def prints(self, program: str, wanted: str) -> None:
        """The program prints this."""
        program = f"import sys, cachalot_gpu\n{program}\nassert 'torch' not in sys.modules"
        self.assertRegex(said(program, NO_TORCH, CACHALOT_LIBCUDA="/nowhere/libcuda.so.1"), wanted)

    def test_right_settings(self) -> None:
        settings = [
            "",
            "policy:caching,expandable_segments:True",
            "policy:planned,fallback:bfc",
            "per_process_memory_fraction:0.5",
        ]
        self.prints(f"print([cachalot_gpu.check(each) for each in {settings}])", r"\[None, None, None, None\]")

    def test_wrong_settings(self) -> None:
        program = """
for wrong in ("policy:nonsense", "max_split_size_mb:1", "policy:bfc,chunk_mb:4", "nonsense", "\\xff", "policy:bfc\\0,nonsense"):
    try:
        cachalot_gpu.check(wrong)
    except cachalot_gpu.ConfigurationError as error:
        print(len(str(error).splitlines()))
"""
        self.prints(program, "1\n1\n1\n1\n1\n1\n")

    def test_settings_that_are_no_text(self) -> None:
        program = """
for wrong in ([], {}, (), 5, 0.5, None, True, object(), b"policy:bfc", bytearray()):
    try:
        cachalot_gpu.check(wrong)
    except TypeError as error:
        print(error)
try:
    cachalot_gpu.check("\\ud800")
except cachalot_gpu.ConfigurationError as error:
    print("refused:", error)
"""
        kinds = ["list", "dict", "tuple", "int", "float", "NoneType", "bool", "object", "bytes", "bytearray"]
        lines = "".join(f"the settings must be a str, not {kind}\n" for kind in kinds)
        self.prints(program, rf"^{lines}refused: the settings '\\ud800' are not text")

    def test_without_pytorch(self) -> None:
        program = """
try:
    import cachalot_gpu.torch
except ImportError as error:
    print(type(error).__name__, error, error.__suppress_context__)
"""
        self.prints(
            program,
            r"ModuleNotFoundError cachalot_gpu\.torch needs PyTorch with CUDA: pip install './python\[torch\]' in a clone of cachalot True",
        )

    def test_the_exceptions_are_four_and_one_warning(self) -> None:
        program = """
from cachalot_gpu import CachalotError, errors
classes = [name for name, kind in vars(cachalot_gpu).items() if isinstance(kind, type) and issubclass(kind, Exception)]
print(sorted(classes), sorted(classes) == sorted(name for name in cachalot_gpu.__all__ if name in classes))
for status in (160, 210, 214, 310, 314, 320, 358, 999):
    error = errors.of_status(status, "text", 7)
    assert isinstance(error, CachalotError) and (error.status, error.driver_code, str(error)) == (status, 7, "text")
    print(status, type(error).__name__)
"""
        classes = "CachalotError CachalotWarning ConfigurationError OutOfMemoryError UnavailableError"
        wanted = (
            f"{classes.split()} True\n"
            "160 ConfigurationError\n210 OutOfMemoryError\n214 OutOfMemoryError\n"
            "310 UnavailableError\n314 UnavailableError\n320 CachalotError\n358 CachalotError\n999 CachalotError\n"
        )
        self.prints(program, re.escape(wanted))


if __name__ == "__main__":
    unittest.main()
