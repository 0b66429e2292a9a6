#!/usr/bin/env python3
"""Writes the notices and the bill of materials of what is shipped: the licences of all crates in it, and of
Rust's standard library.

    scripts/release/notices.py OUT [CRATE...]

OUT receives ``THIRD-PARTY.txt``, and ``sbom.cdx.json`` in the form of CycloneDX 1.5. CRATE is a crate of the workspace
that is shipped: ``cachalot-library`` (the default), ``cachalot-cli``, ``cachalot-front``. The script needs Python 3.9 and cargo, which
``CARGO`` names where it is not on the path. It fails if ``licences.toml`` next to it does not allow a crate's licence,
or if a crate has no licence file.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WORKSPACE = HERE.parent.parent
CARGO = os.environ.get("CARGO", "cargo")
TARGET = os.environ.get("CARGO_BUILD_TARGET", "x86_64-unknown-linux-gnu")

LICENCE_FILE = re.compile(r"(?i)((un)?licen[sc]e|copying|copyright|notice)")

INSIDE = {
    "libsqlite3-sys": "The crate contains SQLite, which is in the public domain: https://sqlite.org/copyright.html",
}
"""The content of a crate besides its own code."""

Package = dict[str, Any]


def output(*command: str) -> str:
    """Runs a command in the workspace, and returns what it prints."""
    return subprocess.run(command, cwd=WORKSPACE, capture_output=True, text=True, check=True).stdout


def third_party(crates: list[str]) -> list[Package]:
    """Returns the packages from a registry that these crates of the workspace contain, or that write their code."""
    metadata = json.loads(output(CARGO, "metadata", "--locked", "--format-version=1", f"--filter-platform={TARGET}"))
    known = {(package["name"], package["version"]): package for package in metadata["packages"]}
    chosen = [f"--package={crate}" for crate in crates]
    shape = ["--edges=normal", f"--target={TARGET}", "--prefix=none", "--format={p}"]
    tree = output(CARGO, "tree", "--locked", *chosen, *shape)
    names = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    packages = (known[name, version.removeprefix("v")] for name, version in names)
    return sorted((package for package in packages if package["source"]), key=lambda package: package["id"])


def licence(package: Package) -> str:
    """Returns the licence that a package states, as an SPDX expression."""
    return (package["license"] or "").replace("/", " OR ")


def is_allowed(expression: str, allowed: set[str]) -> bool:
    """Returns whether the expression is true with the allowed licences: one side of an OR, and both sides of an AND."""
    words = re.findall(r"\(|\)|[^\s()]+(?: WITH \S+)?", expression)
    python = (word.lower() if word in ("(", ")", "OR", "AND") else str(word in allowed) for word in words)
    return bool(words) and bool(eval(" ".join(python), {"__builtins__": {}}))


def refused(packages: list[Package]) -> list[str]:
    """Returns a line for each package whose licence is not on the list."""
    listed = re.search(r"allow = \[(.*?)\]", (HERE / "licences.toml").read_text(encoding="utf-8"), re.DOTALL)
    assert listed, "licences.toml has no list"
    allowed = set(re.findall(r'"([^"]+)"', listed[1]))
    wrong = (package for package in packages if not is_allowed(licence(package), allowed))
    return [f"{package['name']} {package['version']}: {licence(package) or 'no licence'}" for package in wrong]


def texts(package: Package) -> list[str]:
    """Returns the texts of the licence files of a package."""
    files = sorted(Path(package["manifest_path"]).parent.iterdir())
    found = [file for file in files if file.is_file() and LICENCE_FILE.match(file.name)]
    if not found:
        sys.exit(f"{package['name']} {package['version']} has no licence file")
    return [file.read_text(encoding="utf-8", errors="replace").strip() for file in found]


def standard_library() -> str:
    """Returns the notice of Rust's standard library: the text that comes with the compiler, if it is installed."""
    page = Path(output("rustc", "--print", "sysroot").strip()) / "share/doc/rust/COPYRIGHT-library.html"
    text = "The licence is MIT OR Apache-2.0: https://github.com/rust-lang/rust/blob/master/library/Cargo.toml"
    if page.is_file():
        body = re.sub(r"(?s)<(style|head)\b.*?</\1>", "", page.read_text(encoding="utf-8"))
        text = re.sub(r"\n\s*\n+", "\n\n", html.unescape(re.sub(r"<[^>]+>", "", body))).strip()
    return f"Rust's standard library, {output('rustc', '--version').strip()}\n\n{text}"


def notices(packages: list[Package]) -> str:
    """Returns the list of all packages, and each text once with the packages that have it."""
    parts = ["This file lists the software of others that the binaries of cachalot contain."]
    heads = (f"{package['name']} {package['version']}: {licence(package)}" for package in packages)
    lines = [f"{head}. {package['repository'] or ''}" for head, package in zip(heads, packages)]
    parts.append("\n".join(line.rstrip() for line in lines))
    parts += [f"{package['name']}: {INSIDE[package['name']]}" for package in packages if package["name"] in INSIDE]
    having: dict[str, list[str]] = {}
    for package in packages:
        for text in texts(package):
            having.setdefault(text, []).append(f"{package['name']} {package['version']}")
    parts += [f"{', '.join(names)}\n\n{text}" for text, names in having.items()]
    return f"\n\n{'-' * 100}\n\n".join([*parts, standard_library()]) + "\n"


def bill(crates: list[str], packages: list[Package]) -> dict[str, Any]:
    """Returns the bill of materials. It has no time and no serial number, so the same sources have the same bills."""
    manifest = (WORKSPACE / "Cargo.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.+)"', manifest, re.MULTILINE)
    assert version, "Cargo.toml states no version"
    lock = (WORKSPACE / "Cargo.lock").read_text(encoding="utf-8")
    entry = r'name = "(.+)"\nversion = "(.+)"\nsource = .+\nchecksum = "(.+)"'
    checksums = {(name, number): checksum for name, number, checksum in re.findall(entry, lock)}
    components = []
    for package in packages:
        name, number = package["name"], package["version"]
        components.append(
            {
                "type": "library",
                "bom-ref": f"pkg:cargo/{name}@{number}",
                "purl": f"pkg:cargo/{name}@{number}",
                "name": name,
                "version": number,
                "licenses": [{"expression": licence(package)}],
                "hashes": [{"alg": "SHA-256", "content": checksums[name, number]}],
            }
        )
    subject = {
        "type": "library",
        "name": "cachalot",
        "version": version[1],
        "description": f"Built from {', '.join(crates)} by {output('rustc', '--version').strip()}",
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
    }
    head = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": subject}}
    return {**head, "components": components}


def main() -> None:
    """Writes both files."""
    if len(sys.argv) < 2:
        sys.exit("usage: notices.py OUT [CRATE...]")
    crates = sys.argv[2:] or ["cachalot-library"]
    packages = third_party(crates)
    if wrong := refused(packages):
        sys.exit("licences that licences.toml does not allow:\n" + "\n".join(wrong))
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    (out / "THIRD-PARTY.txt").write_text(notices(packages), encoding="utf-8")
    (out / "sbom.cdx.json").write_text(json.dumps(bill(crates, packages), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
