"""Compiles what the wheel contains besides Python: the libraries and the command by cargo, the shim
by a C++ compiler."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

from setuptools.errors import ExecError

_HERE = Path(__file__).resolve().parent

WORKSPACE = _HERE / "rust" if (_HERE / "rust").is_dir() else _HERE.parent
"""The Rust workspace: a folder of the source distribution, or the repository around this folder."""

SHIM = WORKSPACE / "ffi/torch/shim.cpp"
CUPY = WORKSPACE / "ffi/cupy/allocator.cpp"
WHOLE = WORKSPACE / "ffi/torch/whole"
PINNED = WORKSPACE / "ffi/torch/pinned"
TOPICS = WORKSPACE / "ffi/include/cachalot"
HEADERS = [WORKSPACE / "ffi" / name for name in ("include/cachalot.h", "include/cachalot_torch.h", "torch/failure.hpp")]

TARGET = os.environ.get("CARGO_BUILD_TARGET", "x86_64-unknown-linux-gnu")
"""The processor and system that the files are for: cargo's own variable."""

COMPILERS = ("c++", "g++", "clang++")

_MANIFESTS = [manifest.read_text() for manifest in WORKSPACE.glob("emulated-*/**/Cargo.toml")]
EMULATED = sorted(text.split('name = "', 1)[1].split('"')[0] for text in _MANIFESTS if '"cdylib"' in text)
"""The crates of libraries that stand in for NVIDIA's on a machine without a GPU."""

GIVEN = {
    "cachalot-library": "CACHALOT_LIBRARY",
    "cachalot-cli": "CACHALOT_COMMAND",
    "cachalot-front": "CACHALOT_FRONT",
    **dict.fromkeys(EMULATED, "CACHALOT_EMULATED"),
}
"""The crates that cargo builds, and the variables that name files which are already built, or the
folder of cargo's build."""


def stated(key: str) -> str:
    """Returns a value that the workspace's ``Cargo.toml`` states for all crates, such as
    ``version``."""
    found = re.search(rf'^{key} = "(.+)"', (WORKSPACE / "Cargo.toml").read_text(), re.MULTILINE)
    assert found, f"{WORKSPACE}/Cargo.toml states no {key}"
    return found[1]


def require_tools() -> None:
    """Raises an error of one sentence if a tool is missing, before the minutes of a build."""
    if not set(GIVEN.values()) <= set(os.environ):
        cargo()
    compiler()


def cargo() -> str:
    """Returns the path of cargo."""
    if found := shutil.which("cargo"):
        return found
    rust = stated("rust-version")
    raise ExecError(
        f"cachalot-gpu is built by cargo, which is missing: install Rust {rust} or later, https://rustup.rs"
    )


def compiler() -> list[str]:
    """Returns the command of the C++ compiler: that of ``CXX``, else the system's."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    for command in [chosen] if chosen else [[name] for name in COMPILERS]:
        if shutil.which(command[0]):
            return command
    names = chosen[0] if chosen else " or ".join(COMPILERS)
    raise ExecError(f"cachalot-gpu is built by a C++17 compiler, and there is no {names}: install g++, or set CXX")


def run(command: list[str], what: str, **environment: str) -> None:
    """Runs a tool, whose failure ends the build with one sentence after the tool's own messages."""
    code = subprocess.run(command, cwd=WORKSPACE, env={**os.environ, **environment}, check=False).returncode
    if code:
        raise ExecError(f"{what} failed with exit status {code}: {shlex.join(command)}")


def rust_flags() -> str:
    """Returns the flags of the Rust compiler, as ``CARGO_ENCODED_RUSTFLAGS`` joins them.

    Messages of panics name source files. Those of other crates and of the standard library would
    be files of this machine.
    """
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    query = ["rustc", "--print", "sysroot"]
    sysroot = subprocess.run(query, cwd=WORKSPACE, capture_output=True, text=True, check=True).stdout
    renamed = {home / "registry/src": "crates", f"{sysroot.strip()}/lib/rustlib/src/rust": "rust"}
    flags = os.environ.get("RUSTFLAGS", "").split()
    return "\x1f".join(flags + [f"--remap-path-prefix={path}={name}" for path, name in renamed.items()])


@cache
def built() -> Path:
    """Builds the crates whose files are not given, and returns the folder of the files.

    ``CACHALOT_GLIBC`` is the oldest glibc to run with. cargo-zigbuild links with the symbols of
    that version.
    """
    profile = os.environ.get("CACHALOT_CARGO_PROFILE", "release")
    glibc = os.environ.get("CACHALOT_GLIBC")
    command = [cargo(), "zigbuild" if glibc else "build", "--locked", "--profile", profile]
    command += ["--config", f"profile.{profile}.strip='symbols'", "--config", f"profile.{profile}.debug=false"]
    for crate, variable in GIVEN.items():
        if variable not in os.environ:
            command += ["-p", crate]
    if glibc:
        command += ["--target", f"{TARGET}.{glibc}"]
    run(command, "cargo", CARGO_ENCODED_RUSTFLAGS=rust_flags())
    target = WORKSPACE / os.environ.get("CARGO_TARGET_DIR", "target")
    return target / (TARGET if glibc or "CARGO_BUILD_TARGET" in os.environ else "") / ("debug" if profile == "dev" else profile)


def built_file(crate: str, name: str) -> Path:
    """Returns the file of a crate: the given one, else the one with this name built by cargo."""
    given = os.environ.get(GIVEN[crate])
    return Path(given) if given else built() / name


def library() -> Path:
    """Returns the shared library."""
    return built_file("cachalot-library", "libcachalot.so")


def soname() -> str:
    """Returns the SONAME of the library, which ``ffi/library/build.rs`` sets."""
    major, minor, _ = stated("version").split(".")
    return f"libcachalot.so.{f'0.{minor}' if major == '0' else major}"


def command() -> Path:
    """Returns the command."""
    return built_file("cachalot-cli", "cachalot")


def front() -> Path:
    """Returns the library that ``cachalot run`` puts in front of the driver."""
    return built_file("cachalot-front", "libcachalot_front.so")


def emulated(to: Path) -> list[str]:
    """Copies the emulated libraries to a folder, under the names by which programs load them, and
    returns their paths."""
    given = os.environ.get("CACHALOT_EMULATED")
    folder = Path(given) if given else built()
    files = [folder / f"lib{crate.replace('-', '_')}.so" for crate in EMULATED]
    to.mkdir(parents=True, exist_ok=True)
    return [str(shutil.copy(file, to / soname_of(file))) for file in files]


def soname_of(file: Path) -> str:
    """Returns the name that a shared library states for the loader."""
    stated = subprocess.run(["readelf", "--dynamic", str(file)], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\(SONAME\).*\[(.+)\]", stated)
    assert found, f"{file} states no SONAME"
    return found[1]


def compile_shim(source: Path, library: Path) -> None:
    """Compiles the shim that works with every PyTorch, and the functions for CuPy, and puts both
    next to the library."""
    compile_beside(library, source / SHIM.name, source, "libcachalot_torch.so")
    compile_beside(library, CUPY, source, "libcachalot_cupy.so")


def compile_beside(library: Path, code: Path, headers: Path, name: str) -> None:
    """Compiles C++ over the library into a shared library next to it."""
    options = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-s", "-Wl,-rpath,$ORIGIN"]
    # Only symbols that the oldest libstdc++ of C++11 has. The newer kind of string is not in them,
    # and the inlined functions of the older kind ask glibc 2.32 whether the process has threads.
    options += ["-D_GLIBCXX_USE_CXX11_ABI=0", "-fno-sized-deallocation", "-fno-inline"]
    library = library.resolve()
    files = ["-I", str(headers.resolve()), str(code.resolve()), str(library), "-o", str(library.parent / name)]
    run([*compiler(), *options, *files], "the C++ compiler")
