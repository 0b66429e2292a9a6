"""The shim: built once for the installed PyTorch, kept, and done without where it cannot be built."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

from children import STAND_IN, environment, said

ENABLE = """
import warnings, torch, cachalot_gpu.torch
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    cachalot_gpu.torch.enable()
print("told:", [str(warning.message).splitlines()[0] for warning in told])
block = torch._C.State.plugin.alloc(1000, 0, None)
print("allocated:", cachalot_gpu.torch.memory_allocated())
"""

EXCEPTIONS = """
#pragma once
#include <exception>
#include <string>
#include <utility>
namespace c10 {
struct SourceLocation { const char *function; const char *file; unsigned line; };
struct Error : std::exception {
  Error(SourceLocation, std::string text) : text_(std::move(text)) {}
  const char *what() const noexcept override { return text_.c_str(); }
  std::string text_;
};
struct OutOfMemoryError : Error { using Error::Error; };
}
"""

# Calls what PyTorch calls, and tells which exception comes.
CALLER = """
#include <c10/util/Exception.h>
#include <cstdio>
extern "C" void call(void *(*alloc)(size_t, int, void *), size_t bytes) {
  try { alloc(bytes, 0, nullptr); std::puts("a block"); }
  catch (const c10::OutOfMemoryError &error) { std::printf("OutOfMemoryError %.40s\\n", error.what()); }
  catch (const std::exception &error) { std::printf("other %.40s\\n", error.what()); }
  std::fflush(stdout);
}
"""


@unittest.skipUnless(shutil.which(os.environ.get("CXX", "c++")), "no C++ compiler")
class Shims(unittest.TestCase):
    """A cache folder, and a stand-in for PyTorch with headers and a library to link."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache, self.python = Path(folder.name) / "cache", Path(folder.name) / "python"
        shutil.copytree(STAND_IN, self.python)
        home = self.python / "torch"
        (home / "include/c10/util").mkdir(parents=True)
        (home / "include/c10/util/Exception.h").write_text(EXCEPTIONS)
        (home / "lib").mkdir()
        self.compile("", home / "lib/libc10.so")

    def compile(self, source: str, to: Path, *options: str) -> None:
        """Compiles a shared library."""
        compiler = os.environ.get("CXX", "c++")
        command = [
            compiler,
            "-x",
            "c++",
            "-std=c++17",
            "-shared",
            "-fPIC",
            "-I",
            str(self.python / "torch/include"),
            "-",
            "-o",
            str(to),
        ]
        subprocess.run([*command, *options], input=source, text=True, check=True)

    def run_it(self, program: str = ENABLE, **variables: str) -> str:
        """What a program says."""
        return said(program, self.python, CACHALOT_CACHE=str(self.cache), **variables)

    def test_it_is_built_once(self) -> None:
        self.assertEqual(self.run_it(), "told: []\nallocated: 1024\n")
        (shim,) = self.cache.iterdir()
        self.assertTrue(shim.name.startswith("shim-torch-2.11.0+cu130-abi1-"))
        before = shim.stat().st_mtime_ns
        self.assertEqual(self.run_it(PATH="/nowhere"), "told: []\nallocated: 1024\n")
        self.assertEqual(shim.stat().st_mtime_ns, before)

    def test_another_version_has_another(self) -> None:
        self.run_it()
        (self.python / "torch/__init__.py").write_text(
            (STAND_IN / "torch/__init__.py").read_text().replace("2.11.0", "2.12.0")
        )
        self.run_it()
        self.assertEqual(len(list(self.cache.iterdir())), 2)

    def test_processes_at_once(self) -> None:
        command = [sys.executable, "-c", textwrap.dedent(ENABLE)]
        variables = environment(self.python, CACHALOT_CACHE=str(self.cache))
        running = [subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        self.assertEqual([process.communicate()[0] for process in running], ["told: []\nallocated: 1024\n"] * 4)
        self.assertEqual(len(list(self.cache.iterdir())), 1)

    def test_without_a_compiler(self) -> None:
        for variables in ({"PATH": "/nowhere"}, {"CXX": "false"}):
            with self.subTest(variables):
                self.assertRegex(
                    self.run_it(**variables),
                    r"told: \[.out of memory will be a plain RuntimeError.*\]\nallocated: 1024",
                )
        self.assertEqual(list(self.cache.iterdir()), [])

    def test_where_nothing_can_be_kept(self) -> None:
        self.cache.write_text("a file")
        self.assertRegex(self.run_it(), r"told: \[.out of memory.*\]\nallocated: 1024")

    def test_a_damaged_one(self) -> None:
        self.run_it()
        (shim,) = self.cache.iterdir()
        shim.write_bytes(b"no library")
        self.assertRegex(self.run_it(), r"told: \[.out of memory.*\]\nallocated: 1024")

    def with_piece(self, contents: bytes, digest: str) -> str:
        """What a program says without a compiler, where the package has a piece that was compiled against these headers."""
        folder = self.python / "pieces"
        folder.mkdir(exist_ok=True)
        (folder / "shim.so").write_bytes(contents)
        entry = {"kind": "shim", "torch": "2.11", "abi": 1, "file": "shim.so", "digest": digest}
        (folder / "pieces.json").write_text(json.dumps([entry | {"headers": ["c10/util/Exception.h"]}]))
        chosen = f"import pathlib; from cachalot_gpu import _files; _files.PIECES = pathlib.Path({str(folder)!r})\n"
        self.cache = self.cache.with_name("empty")
        return self.run_it(chosen + ENABLE, PATH="/nowhere")

    def test_a_piece_of_the_package_for_the_same_headers(self) -> None:
        self.run_it()
        (shim,) = self.cache.iterdir()
        same = hashlib.sha256(EXCEPTIONS.encode()).hexdigest()
        self.assertEqual(self.with_piece(shim.read_bytes(), same), "told: []\nallocated: 1024\n")

    def test_a_piece_for_other_headers(self) -> None:
        self.run_it()
        (shim,) = self.cache.iterdir()
        other = hashlib.sha256(EXCEPTIONS.replace("text_", "text").encode()).hexdigest()
        self.assertRegex(self.with_piece(shim.read_bytes(), other), r"told: \[.out of memory.*\]\nallocated: 1024")
        self.assertFalse(self.cache.exists() and list(self.cache.iterdir()))

    def test_a_damaged_piece(self) -> None:
        same = hashlib.sha256(EXCEPTIONS.encode()).hexdigest()
        wanted = r"told: \[.a part of the package cannot be loaded.*out of memory.*\]\nallocated: 1024"
        self.assertRegex(self.with_piece(b"no library", same), wanted)

    def test_a_whole_allocator_is_no_plugin(self) -> None:
        installs = self.python / "installs.so"
        program = f"""
import pathlib, torch, cachalot_gpu.torch
from cachalot_gpu.torch import _shim
_shim.whole = lambda: pathlib.Path({str(installs)!r})
before = torch._C._cuda_memoryStats
try:
    cachalot_gpu.torch.enable(patch=True)
except cachalot_gpu.UnavailableError as error:
    print(error)
print(cachalot_gpu.torch.enabled(), torch._C.State.plugin, torch._C._cuda_memoryStats is before)
"""
        for answer, wanted in [("nullptr", "True None True"), ('"it is in use"', ".*too late.*\nFalse None True")]:
            self.compile(f'extern "C" const char *cachalot_torch_install() {{ return {answer}; }}', installs)
            said = self.run_it(program).replace("enable() must come before", "too late:")
            self.assertRegex(said, wanted)

    def test_its_exceptions(self) -> None:
        caller = self.python / "caller.so"
        self.compile(CALLER, caller)
        program = f"""
import ctypes, torch, cachalot_gpu.torch
cachalot_gpu.torch.enable()
call = ctypes.CDLL({str(caller)!r}).call
for size in (1000, 1 << 45):
    call(torch._C.State.plugin.alloc, ctypes.c_size_t(size))
"""
        self.assertEqual(
            self.run_it(program).splitlines(), ["a block", "OutOfMemoryError CUDA out of memory. Tried to allocate 32"]
        )
        self.cache = self.cache.with_name("other")
        plain = self.run_it("import warnings; warnings.simplefilter('ignore')" + program, CXX="false").splitlines()
        self.assertEqual(plain, ["a block", "other CUDA out of memory. Tried to allocate 32"])


if __name__ == "__main__":
    unittest.main()
