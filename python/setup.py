"""Builds the wheel: the Python files, the library by cargo, and the shim by the C++ compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

ROOT = Path(__file__).resolve().parent.parent
SHIM = ROOT / "ffi/torch/shim.cpp"
HEADERS = [ROOT / "include/cachalot.h", ROOT / "include/cachalot_torch.h"]
PROFILE = os.environ.get("CACHALOT_CARGO_PROFILE", "release")


def version() -> str:
    """The version of the whole workspace."""
    found = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert found, "Cargo.toml names a version"
    return found[1]


def shared_library() -> Path:
    """The shared library: the one that CACHALOT_LIBRARY names, else built by cargo."""
    if built := os.environ.get("CACHALOT_LIBRARY"):
        return Path(built)
    # Messages of panics and debug information would name folders of this machine.
    home = os.environ.get("CARGO_HOME", Path.home() / ".cargo")
    flags = [f"--remap-path-prefix={home}=cargo", f"--remap-path-prefix={ROOT}=cachalot"]
    command = ["cargo", "build", "--locked", "--profile", PROFILE, "-p", "cachalot"]
    subprocess.run([*command, "--config", f"build.rustflags={flags}"], cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    return ROOT / target / ("debug" if PROFILE == "dev" else PROFILE) / "libcachalot.so"


class Build(build_py):
    """Adds the library, the shim, and what another shim is built from."""

    def run(self) -> None:
        super().run()
        lib, source = (Path(self.build_lib) / "cachalot_gpu" / name for name in ("lib", "source"))
        for folder in (lib, source):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        for file in [SHIM, *HEADERS]:
            shutil.copy(file, source)
        library = lib / "libcachalot.so"
        shutil.copy(shared_library(), library)
        subprocess.run(["strip", "--strip-unneeded", library], check=True)
        compiler = [os.environ.get("CXX", "c++"), "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
        shim = [*compiler, "-I", source, source / SHIM.name, "-o", lib / "libcachalot_torch.so", library]
        subprocess.run([*shim, "-Wl,-rpath,$ORIGIN"], check=True)


class Wheel(bdist_wheel):
    """A wheel for this kind of machine and any Python 3: nothing in it is linked with Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


class Native(Distribution):
    """One with machine code in it."""

    def has_ext_modules(self) -> bool:
        return True


setup(version=version(), distclass=Native, cmdclass={"build_py": Build, "bdist_wheel": Wheel})
