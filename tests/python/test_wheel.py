"""What the wheel puts into an environment."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import unittest
from pathlib import Path

import cachalot_gpu

PACKAGE = Path(cachalot_gpu.__file__).parent
ROOT = Path(__file__).resolve().parents[2]


class Wheel(unittest.TestCase):
    """The installed files."""

    def test_it_is_the_installed_package(self) -> None:
        self.assertIn("site-packages", PACKAGE.parts)

    def test_its_files(self) -> None:
        wanted = [
            "py.typed",
            "lib/libcachalot.so",
            "lib/libcachalot_torch.so",
            "source/cachalot.h",
            "source/cachalot_torch.h",
            "source/shim.cpp",
        ]
        self.assertEqual([name for name in wanted if not (PACKAGE / name).is_file()], [])

    def test_its_libraries_name_no_folder_of_this_machine(self) -> None:
        folders = [ROOT, Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))]
        for library in (PACKAGE / "lib").iterdir():
            content = library.read_bytes()
            found = [str(folder) for folder in folders if bytes(folder) in content]
            self.assertEqual(found, [], library.name)

    def test_one_version_everywhere(self) -> None:
        found = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
        self.assertEqual([cachalot_gpu.version(), importlib.metadata.version("cachalot-gpu")], [found[1]] * 2)

    def test_it_fits_every_python(self) -> None:
        tag = re.search(r"^Tag: (.+)", importlib.metadata.distribution("cachalot-gpu").read_text("WHEEL"), re.MULTILINE)
        self.assertRegex(tag[1], r"^py3-none-linux_")

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
