"""Tables as CSV, for the folders of tests/results/."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path


def text(rows: Iterable[Iterable[object]]) -> str:
    """Returns a table as CSV. The first row has the titles."""
    to = io.StringIO()
    csv.writer(to, lineterminator="\n").writerows(rows)
    return to.getvalue()


def write(path: Path, rows: Iterable[Iterable[object]]) -> str:
    """Writes a table, and returns its text."""
    table = text(rows)
    path.write_text(table, encoding="utf-8")
    return table
