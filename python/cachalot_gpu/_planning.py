"""Static plans from Python, computed by the ``cachalot`` command."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from . import _files, errors


class Buffer(NamedTuple):
    """A buffer with a known life. A plain tuple of these values is a buffer as well."""

    lower: int
    """The first moment of the life."""
    upper: int
    """The moment after the last one."""
    size: int
    """The bytes of the buffer."""
    alignment: int = 1
    """A power of two that divides the offset."""
    offset: int | None = None
    """The offset, if the buffer cannot be moved."""
    gaps: tuple[tuple[int, ...], ...] = ()
    """The times at which the buffer needs no bytes, ``(lower, upper)``, or only those from ``low``
    up to ``high``: ``(lower, upper, low, high)``. Other buffers are planned into them."""


class Plan(NamedTuple):
    """An offset for every buffer, such that buffers that live at the same moment do not overlap."""

    offsets: list[int]
    """The offsets in bytes, in the order of the buffers."""
    peak_bytes: int
    """The bytes that the plan needs: the largest end of a buffer, not rounded up."""
    lower_bound_bytes: int
    """No plan needs fewer bytes."""
    optimal: bool
    """Whether it is proven that no plan is better."""


def _gap_text(gap: tuple[int, ...]) -> str:
    """Returns a gap as a table has it: ``3-6``, or ``3-6@0:64``."""
    if len(gap) not in (2, 4):
        raise ValueError(f"a gap is (lower, upper) or (lower, upper, low, high), not {gap}")
    return f"{gap[0]}-{gap[1]}" + (f"@{gap[2]}:{gap[3]}" if len(gap) == 4 else "")


def _row(number: int, buffer: Buffer) -> tuple[object, ...]:
    """Returns the line of a buffer in a table."""
    return (number, *buffer[:-1], " ".join(map(_gap_text, buffer.gaps)))


def _of_buffers(text: str, table: Path) -> str:
    """Returns a message of the command with indexes of buffers in place of lines of the table."""
    indexed = re.sub(rf"(?:{re.escape(str(table))}:|\bline )(\d+)", lambda line: f"buffers[{int(line[1]) - 2}]", text)
    return indexed.replace(str(table), "buffers")


def plan(buffers: Iterable[Buffer | tuple[Any, ...]], deadline: float = 10.0) -> Plan:
    """Plans the memory of a program that knows its buffers in advance. Uses every core, until a
    plan is proven optimal or ``deadline`` seconds have passed.

    Raises:
        ConfigurationError: a buffer has a mistake, or cannot be placed at its offset (the text
            gives the index of the buffer), or there was no plan before the deadline.
        ValueError: the deadline is not above 0, or a gap has other than 2 or 4 numbers.
    """
    if not deadline > 0:
        raise ValueError(f"the deadline must be above 0, not {deadline}")
    rows = [_row(number, Buffer(*buffer)) for number, buffer in enumerate(buffers)]
    if not rows:
        return Plan([], 0, 0, True)
    with tempfile.TemporaryDirectory(prefix="cachalot-") as folder:
        table, planned = Path(folder) / "buffers.csv", Path(folder) / "plan.csv"
        with table.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("id", *Buffer._fields), *rows])
        command = [_files.command_path(), "plan", str(table), "--json", "-o", str(planned), "--deadline", str(deadline)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise errors.ConfigurationError(_of_buffers(done.stderr.strip(), table))
        with planned.open(newline="") as file:
            offsets = {int(row["id"]): int(row["offset"]) for row in csv.DictReader(file)}
    found = json.loads(done.stdout)
    ordered = [offsets[number] for number in range(len(rows))]
    return Plan(ordered, found["peak_bytes"], found["lower_bound_bytes"], found["optimal"])
