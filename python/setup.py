"""The commands of setuptools that differ for this package: it brings compiled files, and a program
as its script."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from setuptools import setup  # which provides the module distutils
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.dist import Distribution

# A build backend does not put the folder of this file on the path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from distutils.command.build_scripts import build_scripts
from distutils.command.install_data import install_data

import build_native
import build_sources


class Modules(build_py):
    """Adds the library, the shim, and the C++ that is compiled for the installed PyTorch."""

    def run(self) -> None:
        build_native.require_tools()
        super().run()
        lib, source = (Path(self.build_lib) / "cachalot_gpu" / name for name in ("lib", "source"))
        for folder in (lib, source):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        for file in [build_native.SHIM, *build_native.HEADERS]:
            shutil.copy(file, source)
        shutil.copytree(build_native.WHOLE, source / "whole")
        shutil.copytree(build_native.PINNED, source / "pinned")
        shutil.copytree(build_native.TOPICS, source / "cachalot", ignore=shutil.ignore_patterns("*.hpp"))
        library = shutil.copy(build_native.library(), lib / build_native.soname())
        build_native.compile_shim(source, Path(library))
        # A release has the parts for every known PyTorch, which build_pieces.py makes.
        if pieces := os.environ.get("CACHALOT_PIECES"):
            shutil.copytree(pieces, lib / "torch")


class Scripts(build_scripts):
    """Installs the command as it is. The script of other packages is a Python text, whose first
    line is adapted."""

    def copy_scripts(self) -> tuple[list[str], list[str]]:
        Path(self.build_dir).mkdir(parents=True, exist_ok=True)
        script = str(shutil.copy(build_native.command(), self.build_dir))
        return [script], [script]

    def get_source_files(self) -> list[str]:
        return []


class Data(install_data):
    """Installs the libraries of ``cachalot run`` and ``cachalot emulate`` where the command looks
    for them: in ``../lib/cachalot``."""

    def run(self) -> None:
        emulated = build_native.emulated(Path(self.get_finalized_command("build").build_base) / "emulated")
        self.data_files = [("lib/cachalot", [str(build_native.front())]), ("lib/cachalot/emulated", emulated)]
        super().run()


class Sources(sdist):
    """Adds the Rust crates that the libraries and the command are built from."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        build_sources.copy_workspace(build_native.WORKSPACE, Path(base_dir) / "rust")


class Wheel(bdist_wheel):
    """A wheel for this kind of machine and any Python 3: nothing in the wheel is linked with
    Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


class Native(Distribution):
    """A distribution that contains machine code."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    version=build_native.stated("version"),
    scripts=["cachalot"],
    # Without an entry, the class is not asked.
    data_files=[("lib/cachalot", [])],
    distclass=Native,
    cmdclass={
        "bdist_wheel": Wheel,
        "build_py": Modules,
        "build_scripts": Scripts,
        "install_data": Data,
        "sdist": Sources,
    },
)
