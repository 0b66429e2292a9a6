#!/usr/bin/env python3
"""Compiles the C++ between PyTorch and cachalot for every known version of PyTorch, so that a wheel
needs no compiler where it is installed.

    python/build_pieces.py OUT [VERSION ...]      # such as 2.11; default: every known version

Downloads PyTorch's wheels from the Python package index into target/pytorch-headers (0.5 to 1 GB
each, of which the headers stay: 60 MB each). Writes a file for each version and kind of piece, and
``pieces.json``, which says for each file what it was compiled against. Prints a table. ``CXX``
names the compiler.

The files need no library newer than those of manylinux_2_28.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import build_native

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / "target/pytorch-headers"
SOURCES = ROOT / "ffi/torch"

VERSIONS = ("2.6", "2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
"""The versions that ``whole/versions.hpp`` knows."""

KINDS = {
    "whole": ("shim.cpp", "whole/allocator.cpp"),
    "pinned": ("pinned/allocator.cpp",),
    "shim": ("shim.cpp",),
}
"""The pieces, by the names that ``cachalot_gpu/torch/_shim.py`` asks for, with their sources."""

NEEDED = {
    "whole": ("c10", "c10_cuda", "torch_cuda"),
    "pinned": ("c10", "c10_cuda", "torch_cpu", "torch_cuda"),
    "shim": ("c10",),
}
"""PyTorch's libraries with the functions that a piece calls. PyTorch has loaded them."""

WITHOUT = {"pinned": ("2.6", "2.7")}
"""The versions without an interface for a piece."""

OLD_STRINGS = ("2.6",)
"""The versions of which the index has a wheel with the older of libstdc++'s two kinds of string."""

CUDA_HEADERS = {
    "12": (("nvidia-cuda-runtime-cu12==12.8.*", "cuda_runtime"), ("nvidia-cuda-nvcc-cu12==12.8.*", "cuda_nvcc")),
    "13": (("nvidia-cuda-runtime==13.*", "cu13"), ("nvidia-cuda-crt==13.*", "cu13")),
}
"""The packages with CUDA's headers, by the version of CUDA that a PyTorch was built with."""

EMPTY = ("-shared", "-nostdlib", "-x", "c++", "/dev/null")
"""The compiler's options for a library without functions."""

STRICT = ("-Wall", "-Wextra", "-Werror")


@dataclass(frozen=True)
class Headers:
    """The headers of a version of PyTorch, with those of its CUDA."""

    torch: Path
    cuda: tuple[Path, ...]
    version: str
    """The whole version, such as ``2.11.0+cu130``."""

    def options(self) -> list[str]:
        """Returns the compiler's options for these headers."""
        return [option for folder in (self.torch, *self.cuda) for option in ("-isystem", str(folder))]


class MissingError(Exception):
    """A package is not in the index."""


def fetched(name: str, pattern: str, requirement: str) -> Path:
    """Returns a folder with the files of a wheel that match a pattern. Downloads them once."""
    folder = STORE / name
    if folder.is_dir():
        return folder
    STORE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=STORE, prefix="fetching-") as fresh:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", fresh]
        if subprocess.run([*command, requirement], capture_output=True, check=False).returncode:
            raise MissingError(requirement)
        unpacked = Path(fresh) / "unpacked"
        for wheel in Path(fresh).glob("*.whl"):
            with zipfile.ZipFile(wheel) as files:
                files.extractall(unpacked, [file for file in files.namelist() if re.match(pattern, file)])
        unpacked.rename(folder)
    return folder


def headers_of(version: str) -> Headers:
    """Returns the headers of the latest PyTorch of a version."""
    torch = fetched(f"torch-{version}", r"torch/(include/|version\.py)", f"torch=={version}.*")
    stated = (torch / "torch/version.py").read_text()
    full, cuda = (re.search(rf"^{key}.*'(.+)'", stated, re.MULTILINE) for key in ("__version__", "cuda"))
    assert full and cuda, f"PyTorch {version} states no version of CUDA"
    major = cuda[1].split(".")[0]
    folders = []
    for requirement, place in CUDA_HEADERS[major]:
        package = fetched(re.split("[=<>]", requirement)[0], "nvidia/.*include/", requirement)
        folders.append(package / "nvidia" / place / "include")
    return Headers(torch / "torch/include", tuple(folders), full[1])


def run(command: list[str]) -> str:
    """Runs a command, and returns what it prints. A failure ends the program."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}\n{done.stderr[-4000:]}")
    return done.stdout


def used(kind: str, headers: Headers, options: list[str]) -> list[str]:
    """Returns PyTorch's headers that a piece includes, as paths in the folder of its headers."""
    sources = [str(SOURCES / source) for source in KINDS[kind]]
    rules = run([*build_native.compiler(), *options, "-MM", *sources])
    inside = f"{headers.torch}/"
    names = {os.path.normpath(word) for word in rules.replace("\\\n", " ").split()}
    return sorted(name.removeprefix(inside) for name in names if name.startswith(inside))


def digest(folder: Path, names: list[str]) -> str:
    """Returns the digest of the contents of headers."""
    contents = hashlib.sha256()
    for name in names:
        contents.update((folder / name).read_bytes())
    return contents.hexdigest()


def link_against(folder: Path, kind: str) -> list[str]:
    """Makes libraries without functions, with the names of those that a piece needs, and returns
    the linker's options for them. The loader finds PyTorch's by name, because they are loaded."""
    names = {f"lib{name}.so": f"lib{name}.so" for name in NEEDED[kind]} | {"libcachalot.so": build_native.soname()}
    for file, name in names.items():
        if not (folder / file).exists():
            run([*build_native.compiler(), *EMPTY, f"-Wl,-soname,{name}", "-o", str(folder / file)])
    return ["-Wl,--no-as-needed", *(str(folder / file) for file in names), "-Wl,--as-needed"]


def compiled(kind: str, version: str, abi: int, headers: Headers, to: Path, scratch: Path) -> dict[str, object]:
    """Compiles a piece, and returns its entry of ``pieces.json``."""
    options = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-DCACHALOT_WITH_TORCH"]
    options += [f"-D_GLIBCXX_USE_CXX11_ABI={abi}", "-I", str(ROOT / "include")]
    # -MM leaves out system headers, so the folders are given as ordinary ones.
    plain = [option.replace("-isystem", "-I") for option in headers.options()]
    names = used(kind, headers, [*options, *plain])
    known = digest(headers.torch, names)
    file = f"{kind}-{version}-abi{abi}-{known[:16]}.so"
    # The texts of PyTorch's errors name its headers, which are not to be files of this machine.
    options += [f"-ffile-prefix-map={headers.torch}=torch/include", f"-ffile-prefix-map={ROOT}=."]
    portable = ["-include", str(SOURCES / "portable.hpp")]
    sources = [str(SOURCES / source) for source in KINDS[kind]]
    run(
        [*build_native.compiler(), *options, *STRICT, *headers.options(), *portable, *sources, "-shared", "-s", "-o", str(to / file)]
        # A function that the loader does not find is told when the piece is loaded.
        + [*link_against(scratch, kind), "-Wl,-z,now", "-Wl,-rpath,$ORIGIN/..", "-Wl,--hash-style=gnu"]
    )
    return {"kind": kind, "torch": version, "abi": abi, "file": file, "digest": known, "headers": names}


def pieces(versions: list[str], to: Path) -> Iterator[dict[str, object]]:
    """Compiles every piece of the versions, and prints the rows of the table."""
    print(f"| PyTorch | {' | '.join(KINDS)} |\n|---|{'--:|' * len(KINDS)}")
    with tempfile.TemporaryDirectory() as scratch:
        for version in versions:
            try:
                headers = headers_of(version)
            except MissingError as error:
                print(f"| {version} | {' | '.join([f'not found: {error}'] * len(KINDS))} |")
                continue
            for abi in (0, 1) if version in OLD_STRINGS else (1,):
                row = [f"{headers.version}{' with old strings' if abi == 0 else ''}"]
                for kind in KINDS:
                    if version in WITHOUT.get(kind, ()):
                        row.append("none")
                        continue
                    entry = compiled(kind, version, abi, headers, to, Path(scratch))
                    row.append(f"{(to / str(entry['file'])).stat().st_size / 1000:.0f} KB")
                    yield entry
                print(f"| {' | '.join(row)} |", flush=True)


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("out", type=Path, help="the folder for the files")
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="versions of PyTorch, such as 2.11")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    entries = list(pieces(given.versions or list(VERSIONS), given.out))
    (given.out / "pieces.json").write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
