#!/usr/bin/env python3
"""Prints the provenance of a release: an in-toto statement which says that files were built from a
commit, and with which tools (SLSA provenance, version 1).

    scripts/release/provenance.py URL <SHA256SUMS      URL: the address of the release's files
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

WORKSPACE = Path(__file__).resolve().parents[2]

TOOLS = {"rustc": "rustc --version", "cargo": "cargo --version", "c++": "c++ --version", "python": "python3 --version"}
"""The tools whose versions decide what is built, besides those that the scripts pin."""


def output(command: str) -> str:
    """Returns the first line that a command prints in the workspace."""
    done = subprocess.run(command.split(), cwd=WORKSPACE, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def statement(url: str, sums: list[str]) -> dict[str, Any]:
    """Returns the statement about the files in the lines of ``sha256sum``."""
    files = (line.rstrip("\n").split("  ", 1) for line in sums)
    built = {
        "buildType": f"{url}/docs/releasing.md",
        "externalParameters": {"command": "scripts/release/release.sh"},
        "resolvedDependencies": [{"uri": f"git+{url}", "digest": {"gitCommit": output("git rev-parse HEAD")}}],
    }
    ran = {"builder": {"id": f"{url}/scripts/release", "version": {name: output(TOOLS[name]) for name in TOOLS}}}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": checksum}} for checksum, name in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": built, "runDetails": ran},
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: provenance.py URL <SHA256SUMS")
    print(json.dumps(statement(sys.argv[1], list(sys.stdin)), indent=2))
