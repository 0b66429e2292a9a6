"""A plugin of pytest that runs a library's tests on cachalot: `pytest -p on_cachalot`.

For `suites.py`. `CACHALOT_SUITE` names the library. Tests that set another allocator find cachalot
again in the next test. Each process writes the most bytes that the library has held to a file in
`CACHALOT_SUITE_USED`, so that a run without cachalot is noticed.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

import cachalot_gpu

SUITE = os.environ["CACHALOT_SUITE"]


def _enable() -> None:
    """Makes cachalot the allocator of the library."""
    adapter = importlib.import_module(f"cachalot_gpu.{SUITE}")
    assert adapter.enable()


def pytest_configure() -> None:
    """Enables cachalot before the tests are imported. Numba finds its manager by a variable."""
    if SUITE != "numba":
        _enable()


@pytest.fixture(autouse=True)
def _cachalot_again() -> None:
    if SUITE != "numba":
        _enable()


def pytest_sessionfinish() -> None:
    """Notes that cachalot has served the tests of this process."""
    held = cachalot_gpu.usage().get(SUITE, {})
    peak = max((usage.peak_bytes for usage in held.values()), default=0)
    (Path(os.environ["CACHALOT_SUITE_USED"]) / str(os.getpid())).write_text(str(peak))
