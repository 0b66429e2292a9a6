"""The C++ that the wheel has compiled for known builds of PyTorch.

A piece relies on the order and the sizes of PyTorch's classes. It serves the installed PyTorch if
the headers that it was compiled against have the same contents there, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from .. import _files


def fitting(kind: str, abi: int) -> Path | None:
    """Returns the piece of a kind that fits the installed PyTorch. ``abi`` says which of the two
    kinds of string of libstdc++ PyTorch has."""
    version = ".".join(torch.__version__.split(".")[:2])
    for entry in _entries():
        if (entry["kind"], entry["torch"], entry["abi"]) == (kind, version, abi) and _has_headers(entry):
            return _files.PIECES / str(entry["file"])
    return None


def _entries() -> list[dict[str, Any]]:
    """Returns what each piece was compiled against; nothing where the package was built without
    pieces."""
    try:
        entries: list[dict[str, Any]] = json.loads((_files.PIECES / "pieces.json").read_text())
    except FileNotFoundError:
        return []
    return entries


def _has_headers(entry: dict[str, Any]) -> bool:
    """Returns whether the installed headers have the contents that a piece was compiled against."""
    folder, contents = Path(torch.__file__).parent / "include", hashlib.sha256()
    try:
        for name in entry["headers"]:
            contents.update((folder / name).read_bytes())
    except OSError:
        return False
    return contents.hexdigest() == str(entry["digest"])
