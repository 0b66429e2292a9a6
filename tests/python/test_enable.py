"""``enable()`` and ``MemPool``: what they do, and what they say when they cannot."""

from __future__ import annotations

import os
import tempfile
import unittest

from children import said

BEGIN = """
import torch, cachalot_gpu.torch
from torch._C import State

def error(*arguments, **named):
    try:
        cachalot_gpu.torch.enable(*arguments, **named)
    except cachalot_gpu.CachalotError as error:
        print(type(error).__name__, "|", error)
        assert State.plugin is None
"""


class Enable(unittest.TestCase):
    """Each program is a process."""

    @classmethod
    def setUpClass(cls) -> None:
        cache = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cache.cleanup)
        os.environ["CACHALOT_CACHE"] = cache.name

    def prints(self, program: str, wanted: str, **variables: str) -> None:
        """The program prints something like this."""
        self.assertRegex(said(BEGIN + program, **variables), wanted)

    def test_twice(self) -> None:
        program = """
cachalot_gpu.torch.enable()
assert cachalot_gpu.torch.enabled()
try:
    cachalot_gpu.torch.enable()
except cachalot_gpu.UnavailableError as error:
    print(error)
"""
        self.prints(program, "already")

    def test_too_late(self) -> None:
        self.prints("torch.cuda.init(); error()", r"UnavailableError \| .*before the first use of CUDA")

    def test_too_late_without_a_trace(self) -> None:
        # PyTorch's allocator can be in use without CUDA's having been initialised from Python.
        program = """
def refuse(_):
    raise RuntimeError("Can't swap an already initialized allocator")
torch.cuda.memory.change_current_allocator = refuse
error()
"""
        self.prints(program, r"UnavailableError \| .*Can't swap")

    def test_an_operator_leaves_it_out(self) -> None:
        program = """
import warnings
warnings.simplefilter("error")
try:
    cachalot_gpu.torch.enable("policy:nonsense")
except RuntimeWarning as warning:
    print(warning)
warnings.simplefilter("ignore")
print(cachalot_gpu.torch.enable(), cachalot_gpu.torch.enabled(), State.plugin)
print(cachalot_gpu.torch.metrics())
"""
        wanted = (
            r"PyTorch keeps its own allocator: CACHALOT_DISABLE is set\nFalse False None\n"
            r'(?s:.*)cachalot_left_out\{reason="CACHALOT_DISABLE is set"\} 1\n# EOF'
        )
        self.prints(program, wanted, CACHALOT_DISABLE="1")
        self.prints("print(cachalot_gpu.torch.enable())", "True", CACHALOT_DISABLE="0")

    def test_a_failure_that_is_tolerated(self) -> None:
        program = """
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    print(cachalot_gpu.torch.enable("policy:nonsense", strict=False), State.plugin, len(told), told[0].filename)
print(cachalot_gpu.torch.metrics())
print(cachalot_gpu.torch.enable("policy:bfc", strict=False), cachalot_gpu.torch.enabled())
"""
        self.prints(program, r'False None 1 <string>\n(?s:.*)cachalot_left_out\{reason=".*nonsense.*"\} 1\n# EOF\n+True True')

    def test_wrong_settings(self) -> None:
        self.prints('error("policy:nonsense")', r"ConfigurationError \| .*nonsense.*caching")
        self.prints(
            'error("garbage_collection_threshold:2"); error("max_split_size_mb:64"); print(State.plugin)',
            "ConfigurationError .*\n<torch",
        )

    def test_settings_are_checked_without_a_gpu(self) -> None:
        nothing = {"CACHALOT_LIBCUDA": "/nowhere/libcuda.so.1"}
        program = "State.devices = 0; error({}); error('policy:caching')"
        wanted = r"ConfigurationError \| .*nonsense.*caching.*\nUnavailableError \| "
        self.prints(program.format("'policy:nonsense'"), wanted, **nothing)
        self.prints(
            "State.devices = 0; error()", "ConfigurationError .*nonsense", CACHALOT_CONF="nonsense:1", **nothing
        )
        built_without_cuda = "torch.version.cuda = None; " + program.format("'policy:nonsense'")
        self.prints(built_without_cuda, wanted + ".*built without CUDA", **nothing)

    def test_wrong_settings_leave_those_of_a_pool(self) -> None:
        program = """
pool = cachalot_gpu.torch.MemPool(config="roundup_power2_divisions:4")
error("policy:nonsense"), error("roundup_power2_divisions:1")
pool.allocator.alloc(2049, 0, None)
print(cachalot_gpu.torch.memory_allocated())
"""
        self.prints(program, r"ConfigurationError .*\nUnavailableError .*\n2560")

    def test_no_gpu(self) -> None:
        self.prints("State.devices = 0; error()", r"UnavailableError \| PyTorch finds no GPU")
        self.prints("torch.version.cuda = None; error()", r"UnavailableError \| .*built without CUDA")

    def test_no_driver(self) -> None:
        self.prints("error()", r"UnavailableError \| ", CACHALOT_LIBCUDA="/nowhere/libcuda.so.1")

    def test_an_old_driver(self) -> None:
        self.prints("error()", r"UnavailableError \| .*11\.4", CACHALOT_EMU_DRIVER_VERSION="11030")

    def test_an_old_pytorch(self) -> None:
        self.prints(
            "torch.__version__ = '2.0.0'; del torch._C._CUDAPluggableAllocator.set_begin_allocate_to_pool; "
            "del torch._C._CUDAPluggableAllocator.__getattr__; error()",
            r"UnavailableError \| PyTorch 2\.0\.0 .* 2\.2 or later",
        )

    def test_figures_before_the_first_allocation(self) -> None:
        program = """
print(cachalot_gpu.torch.memory_stats(), cachalot_gpu.torch.memory_allocated(), cachalot_gpu.torch.memory_snapshot())
cachalot_gpu.torch.reset_peak_memory_stats(), cachalot_gpu.torch.empty_cache()
"""
        self.prints(program, r"OrderedDict\((\{\})?\) 0 \[\]")

    def test_without_the_patch_pytorchs_figures_stay_its_own(self) -> None:
        program = """
cachalot_gpu.torch.enable()
block = State.plugin.alloc(1000, 0, None)
try:
    torch.cuda.memory_stats()
except RuntimeError as error:
    print(error, cachalot_gpu.torch.memory_stats()["allocated_bytes.all.current"])
"""
        self.prints(program, "does not yet support it 1024")

    def test_settings_of_the_environment(self) -> None:
        program = """
cachalot_gpu.torch.enable()
State.plugin.alloc(1 << 20, 0, None)
print(cachalot_gpu.torch.memory_snapshot()[0]["is_expandable"])
"""
        self.prints(program, "True", CACHALOT_CONF="expandable_segments:True")
        self.prints(program, "True", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True,pinned_num_register_threads:2")
        self.prints(
            program, "False", CACHALOT_CONF="policy:caching", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"
        )

    def test_settings_at_run_time(self) -> None:
        program = """
cachalot_gpu.torch.enable()
cachalot_gpu.torch.configure("roundup_power2_divisions:4")
State.plugin.alloc(2049, 0, None)
print(cachalot_gpu.torch.memory_allocated())
try:
    cachalot_gpu.torch.configure("roundup_power2_divisions:3")
except ValueError as error:
    print(error)
"""
        self.prints(program, "2560\n.*only a power of two")

    def test_a_plugin_says_why_it_is_no_more(self) -> None:
        program = """
import warnings
torch.__version__ = {!r}
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    cachalot_gpu.torch.enable()
print(told[0].message, "|", State.plugin is not None)
"""
        whole = {"CACHALOT_TORCH_PLUGIN": ""}
        wanted = r"cachalot is a plug-in of PyTorch only: {} \| True"
        self.prints(program.format("2.11.0+cu130"), wanted.format("this PyTorch has no headers"), **whole)
        for version in ("2.5.1+cu124", "2.16.0", "3.0.0a0+git1"):
            unknown = rf"the interface of PyTorch {version.replace('+', '.')} is unknown: 2\.6 to 2\.15 are known, .*"
            self.prints(program.format(version), wanted.format(unknown), **whole)

    def test_a_setting_without_effect_is_a_warning_at_the_line_of_the_caller(self) -> None:
        program = """
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    {}
notes = [warning for warning in told if "has no effect" in str(warning.message)]
print([str(note.message) for note in notes], {{(note.category.__name__, note.filename) for note in notes}})
"""
        note = r"compact has no effect: expandable segments have no budget"
        wanted = rf"^\['cachalot: {note}'\] \{{\('CachalotWarning', '<string>'\)\}}\n$"
        settings = "compact:0.05,expandable_segments:True"
        self.prints(program.format(f"cachalot_gpu.torch.enable({settings!r})"), wanted)
        self.prints(program.format("cachalot_gpu.torch.enable()"), wanted, CACHALOT_CONF=settings)
        self.prints(program.format(f"cachalot_gpu.torch.MemPool(config={settings!r})"), wanted)
        self.prints(program.format(f"cachalot_gpu.check({settings!r})"), wanted)
        self.prints(program.format(f"cachalot_gpu.torch.enable(cuda=False, pinned={settings!r}, strict=False)"), wanted)
        self.prints(program.format('cachalot_gpu.torch.enable("expandable_segments:True")'), r"^\[\] set\(\)\n$")

    def test_pinned_memory_says_which_versions_it_knows(self) -> None:
        program = """
torch.__version__ = {!r}
try:
    cachalot_gpu.torch.enable(cuda=False, pinned="compact:0.1")
except cachalot_gpu.UnavailableError as error:
    print(error)
print(cachalot_gpu.torch.enabled(pinned=True))
"""
        for version in ("2.5.1+cu124", "2.7.1"):
            wanted = rf"PyTorch {version.replace('+', '.')} sets no allocator of pinned memory: 2\.8 or later"
            self.prints(program.format(version), wanted + ".*\nFalse")
        unknown = (
            r"the interface of PyTorch 2\.16\.0 is unknown: 2\.8 to 2\.15 are known, "
            r"install one of them: pip install 'torch>=2\.8,<2\.16'"
        )
        self.prints(program.format("2.16.0"), unknown + "\nFalse")
        self.prints(program.format("2.11.0+cu130"), "this PyTorch has no headers\nFalse")
        mistake = 'cachalot_gpu.torch.enable(cuda=False, pinned="compact:much")'
        self.prints(f"try:\n    {mistake}\nexcept ValueError as error:\n    print(error)", ".*only a number from 0 to 1")

    def test_a_failure_of_pinned_memory_comes_before_any_change(self) -> None:
        program = """
import warnings
warnings.simplefilter("ignore")
error(pinned=True)
print(cachalot_gpu.torch.enable(pinned=True, strict=False))
print(cachalot_gpu.torch.enabled(), cachalot_gpu.torch.enabled(pinned=True))
try:
    cachalot_gpu.torch.enable(cuda=False)
except ValueError as mistake:
    print(mistake)
"""
        wanted = r"UnavailableError \| .*pinned memory: .*no headers\nFalse\nTrue False\nenable\(\) has nothing to do"
        self.prints(program, wanted)

    def test_a_pool(self) -> None:
        program = """
pool = cachalot_gpu.torch.MemPool(use_on_oom=True)
assert torch.cuda.is_initialized() and State.plugin is None
block = pool.allocator.alloc(20 << 20, 0, None)
print(pool.options, cachalot_gpu.torch.memory_allocated(), pool.allocator.alloc(1 << 45, 0, None))
pool.allocator.free(block, 20 << 20, 0, None)
assert cachalot_gpu.torch.MemPool().allocator is pool.allocator
"""
        self.prints(program, r"\{'use_on_oom': True\} 20971520 None")

    def test_no_pool_beside_the_plugin(self) -> None:
        program = """
cachalot_gpu.torch.enable()
try:
    cachalot_gpu.torch.MemPool()
except cachalot_gpu.CachalotError as error:
    print(error)
"""
        self.prints(program, "no MemPool under a plug-in")


if __name__ == "__main__":
    unittest.main()
