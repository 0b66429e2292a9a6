"""Copies the part of the Rust workspace from which the libraries and the command are built, for the
source distribution."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from setuptools.errors import ExecError

import build_native

LEFT_OUT = ("tests/", "examples/", "Cargo.toml.orig", "Cargo.lock", ".cargo_vcs_info.json")
"""The files that cargo lists for a package and a build does not need: programs on the crate, and
files that cargo makes itself."""


def output(workspace: Path, *arguments: str) -> str:
    """Runs cargo in a workspace, and returns what cargo prints."""
    done = subprocess.run(
        [build_native.cargo(), *arguments], cwd=workspace, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ExecError(f"cargo {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout


def crates(workspace: Path) -> dict[str, Path]:
    """Returns the crates of the workspace that cargo builds for the wheel, and those that they
    need, by name, with their folders."""
    metadata = json.loads(output(workspace, "metadata", "--locked", "--offline", "--no-deps", "--format-version=1"))
    members: dict[str, Any] = {package["name"]: package for package in metadata["packages"]}
    needed: dict[str, Path] = {}
    waiting = list(build_native.GIVEN)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed[name] = Path(members[name]["manifest_path"]).parent
            dependencies = members[name]["dependencies"]
            waiting += [used["name"] for used in dependencies if used.get("path") and used["kind"] != "dev"]
    return dict(sorted(needed.items()))


def without_tests(manifest: str) -> str:
    """Returns the manifest of a crate without its tests, its examples and their dependencies, since
    none of them is copied."""
    table = r"^(\[\[(example|test|bench)\]\]|\[(target\.[^\n]*\.)?dev-dependencies\])\n.*?(?=^\[|\Z)"
    return re.sub(table, "", manifest, flags=re.MULTILINE | re.DOTALL)


def of_members(manifest: str, members: list[str]) -> str:
    """Returns the manifest of the workspace with these members only."""
    array = r" = \[.*?\]\n"
    manifest = re.sub(rf"^exclude{array}", "", manifest, flags=re.MULTILINE | re.DOTALL)
    return re.sub(rf"^members{array}", f"members = {json.dumps(members)}\n", manifest, flags=re.MULTILINE | re.DOTALL)


def copy_workspace(workspace: Path, to: Path) -> None:
    """Copies the crates that are needed into their own workspace, with the locked versions of
    what they use."""
    needed = crates(workspace)
    for name, folder in needed.items():
        for file in output(workspace, "package", "--list", "--allow-dirty", "--offline", "-p", name).splitlines():
            if file.startswith(LEFT_OUT):
                continue
            copy = to / folder.relative_to(workspace) / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / file, copy)
            if file == "Cargo.toml":
                copy.write_text(without_tests(copy.read_text()))
    members = [str(folder.relative_to(workspace)) for folder in needed.values()]
    (to / "Cargo.toml").write_text(of_members((workspace / "Cargo.toml").read_text(), members))
    shutil.copy2(workspace / "Cargo.lock", to)
    # Takes the dependencies of the other crates out of the lock file, and changes no version.
    output(to, "update", "--workspace", "--offline")
