"""A plugin of pytest that writes the outcome of each test as soon as it is known: `pytest -p outcomes`.

For `suites.py`. `CACHALOT_SUITE_OUTCOMES` names the file, which gets a line for each part of a test
that decides its outcome: the address of the test, a tab, and `passed`, `failure`, `error` or
`skipped`; at the start of the test `begun`. A run that is ended in the middle leaves what it has found.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

OUT = Path(os.environ["CACHALOT_SUITE_OUTCOMES"])
WORKER = "PYTEST_XDIST_WORKER"
"""Set in the processes that run the tests for another one, which hears of all of them."""


class Outcomes:
    """Writes the outcomes of a run."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Writes that a test begins."""
        self.write(nodeid, "begun")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Writes what a report decides: a call that has passed, and whatever else has happened."""
        if report.passed and report.when != "call":
            return
        self.write(report.nodeid, report.outcome if not report.failed else "failure" if report.when == "call" else "error")

    def write(self, test: str, outcome: str) -> None:
        """Writes a line."""
        with OUT.open("a") as file:
            file.write(f"{self.root / test}\t{outcome}\n")


def pytest_configure(config: pytest.Config) -> None:
    """Listens in the process that was started."""
    if WORKER not in os.environ:
        config.pluginmanager.register(Outcomes(config.rootpath))
