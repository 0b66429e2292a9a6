"""The files and the metadata that the wheel puts into an environment."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

import cachalot_gpu

PACKAGE = Path(cachalot_gpu.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
INSTALLED = importlib.metadata.distribution("cachalot-gpu")

FRONT = Path(cachalot_gpu.command_path()).parent.parent / "lib/cachalot/libcachalot_front.so"
"""The library of ``cachalot run``, where the command looks for it."""

EMULATED = FRONT.parent / "emulated"
"""The folder of the libraries that stand in for NVIDIA's."""

PROGRAMS = [file for file in (PACKAGE / "lib").rglob("*") if ".so" in file.suffixes]
# Other files are as the tests of the workspace use them.
PROGRAMS += [Path(cachalot_gpu.command_path())] if "CACHALOT_COMMAND" not in os.environ else []
PROGRAMS += [FRONT] if "CACHALOT_FRONT" not in os.environ else []
PROGRAMS += EMULATED.glob("*") if "CACHALOT_EMULATED" not in os.environ else []

OLDEST = {"GLIBC": (2, 17), "GLIBCXX": (3, 4, 19), "CXXABI": (1, 3, 7)}
"""The newest symbol versions of what works with every PyTorch: those of manylinux_2_17."""

OLDEST_OF_PIECES = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11)}
"""Those of the parts for known versions of PyTorch: of manylinux_2_28."""


class Wheel(unittest.TestCase):
    """The installed files."""

    def test_it_is_the_installed_package(self) -> None:
        self.assertIn("site-packages", PACKAGE.parts)

    def test_its_files(self) -> None:
        wanted = [
            "py.typed",
            "_doctor.py",
            "lib/libcachalot_cupy.so",
            "lib/libcachalot_torch.so",
            "source/cachalot.h",
            "source/cachalot/pools.h",
            "source/cachalot_torch.h",
            "source/failure.hpp",
            "source/pinned/allocator.cpp",
            "source/pinned/captured.hpp",
            "source/shim.cpp",
            "source/whole/allocator.cpp",
            "source/whole/versions.hpp",
        ]
        self.assertEqual([name for name in wanted if not (PACKAGE / name).is_file()], [])
        self.assertIn(Path(cachalot_gpu.library_path()), (PACKAGE / "lib").iterdir())
        installed = [Path(file.locate()).resolve() for file in INSTALLED.files]
        for file in (FRONT, EMULATED / "libcuda.so.1", EMULATED / "libcudart.so.13"):
            self.assertIn(file, installed)

    def test_its_shim_finds_its_library(self) -> None:
        program = f"import ctypes; ctypes.CDLL({str(PACKAGE / 'lib/libcachalot_torch.so')!r}).cachalot_torch_alloc"
        subprocess.run([sys.executable, "-c", program], check=True)

    def test_it_claims_no_name_of_other_projects(self) -> None:
        # Python keeps what it has compiled of a module in a folder beside it.
        parts = {file.name if file.parts[0] == "__pycache__" else file.parts[0] for file in INSTALLED.files}
        self.assertEqual({name for name in parts if not name.startswith("cachalot_gpu")}, {".."})

    def test_the_documentation_names_this_module(self) -> None:
        other = re.compile(r"\bimport cachalot\b|\bcachalot\.(?:torch|check|plan)\b")
        for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]:
            self.assertEqual(other.findall(page.read_text()), [], page.name)

    def test_its_programs_name_no_source_file_of_a_machine(self) -> None:
        absolute = re.compile(rb"(?<![\w./-])/[\w./+-]+\.(?:rs|cpp|h)\b")
        for program in PROGRAMS:
            with self.subTest(program.name):
                content = program.read_bytes()
                # The standard library is built elsewhere.
                named = {
                    name for name in absolute.findall(content) if not name.startswith((b"/rustc/", b"/rust/deps/"))
                }
                self.assertEqual(named, set())
                self.assertNotIn(bytes(Path.home() / ".cargo"), content)
                self.assertNotIn(bytes(ROOT) + b"/", content)

    def test_its_programs_are_stripped(self) -> None:
        for program in PROGRAMS:
            with self.subTest(program.name):
                content = program.read_bytes()
                self.assertNotIn(b"\0.symtab\0", content)
                self.assertNotIn(b"\0.debug_info\0", content)

    def test_its_shims_run_with_old_libraries(self) -> None:
        shims = {PACKAGE / "lib" / name: OLDEST for name in ("libcachalot_torch.so", "libcachalot_cupy.so")}
        # A release has the parts for PyTorch, too.
        pieces = {piece: OLDEST_OF_PIECES for piece in (PACKAGE / "lib/torch").glob("*.so")}
        for shim, oldest in (shims | pieces).items():
            for name, version in re.findall(rb"\0(GLIBC|GLIBCXX|CXXABI)_([\d.]+)(?=\0)", shim.read_bytes()):
                with self.subTest(f"{shim.name} {name} {version}"):
                    self.assertLessEqual(tuple(map(int, version.split(b"."))), oldest[name.decode()])

    def test_one_version_everywhere(self) -> None:
        found = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
        versions = [cachalot_gpu.__version__, cachalot_gpu.version(), INSTALLED.version]
        self.assertEqual(versions, [found[1]] * 3)

    def test_its_metadata(self) -> None:
        metadata = INSTALLED.metadata
        self.assertEqual(metadata["License-Expression"], "MIT OR Apache-2.0")
        # A release has LICENSE-THIRD-PARTY.txt as well.
        licences = set(metadata.get_all("License-File")) - {"LICENSE-THIRD-PARTY.txt"}
        self.assertEqual(licences, {"LICENSE-APACHE", "LICENSE-MIT"})
        for name in ("LICENSE-MIT", "LICENSE-APACHE"):
            self.assertEqual(INSTALLED.read_text(f"licenses/{name}"), (ROOT / name).read_text())
        self.assertEqual(metadata.get_all("Provides-Extra"), ["torch"])
        self.assertEqual(INSTALLED.requires, ['torch<2.16,>=2.6; extra == "torch"'])

    def test_it_fits_every_python(self) -> None:
        tag = re.search(r"^Tag: (.+)", INSTALLED.read_text("WHEEL"), re.MULTILINE)
        self.assertRegex(tag[1], r"^py3-none-(many)?linux_")

    def test_everything_public_is_documented_and_typed(self) -> None:
        for file in PACKAGE.rglob("*.py"):
            parsed = ast.parse(file.read_text())
            classes = [node for node in parsed.body if isinstance(node, ast.ClassDef)]
            functions = [node for part in (parsed, *classes) for node in part.body if isinstance(node, ast.FunctionDef)]
            for node in classes + functions:
                self.assertTrue(node.name == "__init__" or ast.get_docstring(node), f"{file.name}: {node.name}")
            for node in functions:
                self.assertIsNotNone(node.returns, f"{file.name}: {node.name}")


if __name__ == "__main__":
    unittest.main()
