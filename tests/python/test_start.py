"""``CACHALOT=1``: cachalot without a line in the program."""

from __future__ import annotations

import os
import tempfile
import unittest

from children import ran

ASK = """
import sys, torch, cachalot_gpu.torch
from torch._C import State
print(cachalot_gpu.torch.enabled(), State.plugin is not None, State.initialized)
"""


class Start(unittest.TestCase):
    """Each program is a process. The stand-in for PyTorch has no whole allocator, so cachalot is a plug-in."""

    @classmethod
    def setUpClass(cls) -> None:
        cache = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cache.cleanup)
        os.environ["CACHALOT_CACHE"] = cache.name

    def test_it_is_off_by_default(self) -> None:
        for variables in ({}, {"CACHALOT": ""}, {"CACHALOT": "0"}):
            with self.subTest(variables):
                self.assertEqual(ran(ASK, **variables), ("False False False\n", ""))

    def test_off_reads_nothing_of_the_package(self) -> None:
        program = 'import sys, torch; print([name for name in sys.modules if name.startswith("cachalot_gpu")])'
        self.assertEqual(ran(program), ("['cachalot_gpu_start']\n", ""))

    def test_without_pytorch_it_is_not_read(self) -> None:
        program = 'import sys; print([name for name in sys.modules if name.startswith("cachalot")])'
        self.assertEqual(ran(program, CACHALOT="1"), ("[]\n", ""))

    def test_on(self) -> None:
        printed, said = ran(ASK, CACHALOT="1", CXX="false")
        self.assertEqual(printed, "True True False\n")
        self.assertRegex(said, r"\Acachalot: out of memory will be a plain RuntimeError.*\n\Z")

    def test_pytorchs_functions_work_under_the_plugin(self) -> None:
        program = """
import torch
block = torch._C.State.plugin.alloc(1000, 0, None)
print(torch.cuda.memory_stats()["allocated_bytes.all.current"])
"""
        self.assertEqual(ran(program, CACHALOT="1")[0], "1024\n")

    def test_the_driver_is_left_alone(self) -> None:
        """No driver is needed, so none is loaded: it would be lost in a forked child."""
        nothing = {"CACHALOT": "1", "CACHALOT_LIBCUDA": "/nowhere/libcuda.so.1"}
        self.assertEqual(ran(ASK, **nothing)[0], "True True False\n")
        program = """
import os, torch
child = os.fork()
if child == 0:
    assert torch._C.State.plugin.alloc(1000, 0, None)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if hasattr(os, "waitstatus_to_exitcode") else 7)
"""
        self.assertEqual(ran(program, CACHALOT="1")[0], "7\n")

    def test_the_programs_own_call_gives_its_settings(self) -> None:
        program = """
import torch, cachalot_gpu.torch
print(cachalot_gpu.torch.enable("roundup_power2_divisions:2"))
torch._C.State.plugin.alloc(2049, 0, None)
print(cachalot_gpu.torch.memory_allocated())
try:
    cachalot_gpu.torch.enable()
except cachalot_gpu.UnavailableError as error:
    print(error)
"""
        printed, _ = ran(program, CACHALOT="1")
        self.assertRegex(printed, r"\ATrue\n3072\n.*already.*\n\Z")

    def test_settings_come_with_the_first_request(self) -> None:
        program = """
import os, torch, cachalot_gpu.torch
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "roundup_power2_divisions:2"
torch._C.State.plugin.alloc(2049, 0, None)
print(cachalot_gpu.torch.memory_allocated())
"""
        self.assertEqual(ran(program, CACHALOT="1")[0], "3072\n")

    def test_a_setting_without_effect(self) -> None:
        setting = {"CACHALOT": "1", "CACHALOT_CONF": "garbage_collection_threshold:0.8"}
        printed, said = ran("import warnings; warnings.simplefilter('error')" + ASK, **setting)
        self.assertEqual(printed, "True True False\n")
        self.assertRegex(said, r"(?m)^cachalot: garbage_collection_threshold has no effect")

    def test_whatever_fails_leaves_the_program_as_it_was(self) -> None:
        keeps = r"\Acachalot: PyTorch keeps its own allocator: "
        for variables, reason in [
            ({"CACHALOT": "yes"}, "CACHALOT is 'yes': expected 1"),
            ({"CACHALOT_DISABLE": "1"}, "CACHALOT_DISABLE is set"),
            ({"CACHALOT_CONF": "policy:nonsense"}, "CACHALOT_CONF: .*nonsense"),
            ({"CACHALOT_LIBRARY": "/nowhere.so"}, ".*nowhere"),
        ]:
            with self.subTest(variables):
                asked = {"CACHALOT": "1"} | variables
                program = "import torch; print(torch._C.State.plugin)"
                printed, said = ran(program, **asked)
                self.assertEqual(printed, "None\n")
                self.assertRegex(said, keeps + reason + r".*\n\Z")

    def test_pytorchs_switch_for_entry_points(self) -> None:
        self.assertEqual(ran(ASK, CACHALOT="1", TORCH_DEVICE_BACKEND_AUTOLOAD="0"), ("False False False\n", ""))


if __name__ == "__main__":
    unittest.main()
