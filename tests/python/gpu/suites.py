"""The libraries' own tests of memory, as they are and with cachalot as the allocator.

    pip install --target SITE ./python filecheck
    PYTHONPATH=SITE python tests/python/gpu/suites.py OUT.csv FOLDER [SUITE...]

SUITE: cupy, rmm, numba; all by default. numba-cuda's tests are in its package. FOLDER has the
others, of the versions that are installed: `cupy/` with `pyproject.toml` and `tests/` of CuPy's
repository, and `rmm/` with `python/rmm/rmm/tests` of RMM's. A suite whose library or tests are
missing is a line `skipped`.

The tables count tests by outcome, and name each test whose outcome differs. OUT.csv gets the same:
suite, what, name, plain, cachalot. The exit status is 1 if a test fails with cachalot only, or if
cachalot has served no memory.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
LONGEST = 90
"""The most seconds of one run."""

CUPY = (
    "cuda_tests/test_memory.py",
    "cuda_tests/test_memory_hook.py",
    "cuda_tests/memory_hooks_tests",
    "cuda_tests/test_pinned_memory.py",
    "cuda_tests/test_stream.py",
    "core_tests/test_dlpack.py",
    "core_tests/test_ndarray.py",
    "core_tests/test_ndarray_cuda_array_interface.py",
    "core_tests/test_ndarray_get.py",
    "core_tests/test_ndarray_owndata.py",
)
RMM = (
    "test_allocations.py",
    "test_callback_memory_resource.py",
    "test_cupy_integration.py",
    "test_device_buffer.py",
    "test_failure_callback_resource_adaptor.py",
    "test_initialization.py",
    "test_lifecycle.py",
    "test_limiting_resource_adaptor.py",
    "test_rmm_pytorch.py",
    "test_statistics.py",
    "test_stream.py",
    "test_tracking_resource_adaptor.py",
)
NUMBA = (
    "cudadrv/test_array_attr.py",
    "cudadrv/test_context_stack.py",
    "cudadrv/test_cuda_array_slicing.py",
    "cudadrv/test_cuda_devicerecord.py",
    "cudadrv/test_cuda_driver.py",
    "cudadrv/test_cuda_memory.py",
    "cudadrv/test_cuda_ndarray.py",
    "cudadrv/test_deallocations.py",
    "cudadrv/test_events.py",
    "cudadrv/test_host_alloc.py",
    "cudadrv/test_managed_alloc.py",
    "cudadrv/test_pinned.py",
    "cudadrv/test_reset_device.py",
    "cudadrv/test_select_device.py",
    "cudadrv/test_streams.py",
    "cudapy/test_cuda_array_interface.py",
)


LEFT_OUT = {
    "test_host_alloc.py::TestHostAlloc::test_host_alloc_pinned": "takes the whole segment of the pool, "
    "which the driver names, for the array, and writes to all of it",
}
"""Tests that run neither way, each with the reason."""

NUMBA_FIXTURES = """
import pytest

@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    request.cls._dump_failed_filechecks = False
"""
"""What numba-cuda's repository has beside its package."""


def files(suite: str, folder: Path) -> list[Path] | None:
    """Returns the files of a suite's tests, or `None` if the library or the tests are missing."""
    if suite == "numba":
        found = importlib.util.find_spec("numba_cuda")
        tests = Path(found.origin).parent / "numba" / "cuda" / "tests" if found and found.origin else folder / suite
        names = NUMBA
    else:
        tests = folder / "cupy" / "tests" / "cupy_tests" if suite == "cupy" else folder / "rmm"
        names = CUPY if suite == "cupy" else RMM
        if importlib.util.find_spec(suite) is None:
            return None
    paths = [tests / name for name in names]
    return [path for path in paths if path.exists()] or None


def outcome(case: ElementTree.Element) -> str:
    """Returns the outcome of a test in pytest's report."""
    return next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed")


def run(suite: str, paths: list[Path], on_cachalot: bool) -> tuple[dict[str, str], int]:
    """Runs a suite's tests. Returns the outcomes by name, and the most bytes that cachalot
    served in a process."""
    with tempfile.TemporaryDirectory() as scratch:
        report, used = Path(scratch) / "report.xml", Path(scratch) / "used"
        used.mkdir()
        if suite == "numba":
            # In the package, pytest would import them as parts of a package `cuda`.
            paths = [Path(shutil.copy(path, scratch)) for path in paths]
            (Path(scratch) / "conftest.py").write_text(NUMBA_FIXTURES)
        command = [sys.executable, "-m", "pytest", "-q", "-n", "8", "--dist", "loadfile", "-p", "no:cacheprovider"]
        command += [f"--junitxml={report}", "-o", "junit_family=xunit1", "--tb=line", "--continue-on-collection-errors"]
        command += [*map(str, paths), *(f"--deselect={name}" for name in LEFT_OUT)]
        environment = os.environ | {"CACHALOT_SUITE": suite, "CACHALOT_SUITE_USED": str(used)}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
        if on_cachalot:
            command += ["-p", "on_cachalot"]
            if suite == "numba":
                environment["NUMBA_CUDA_MEMORY_MANAGER"] = "cachalot_gpu.numba"
        try:
            done = subprocess.run(
                command,
                env=environment,
                cwd=paths[0].parent,
                capture_output=True,
                text=True,
                timeout=LONGEST,
                check=False,
            )
        except subprocess.TimeoutExpired:
            print(f"{suite}: not done in {LONGEST} s")
            return {}, 0
        if not report.exists():
            print(done.stdout[-4000:] + done.stderr[-4000:])
            return {}, 0
        cases = ElementTree.parse(report).iter("testcase")
        outcomes: dict[str, str] = {f"{case.get('classname')}::{case.get('name')}": outcome(case) for case in cases}
        if not outcomes:
            print(done.stdout[-4000:] + done.stderr[-4000:])
        return outcomes, max((int(file.read_text()) for file in used.iterdir()), default=0)


def compare(suite: str, paths: list[Path]) -> tuple[list[list[object]], bool]:
    """Runs a suite both ways. Returns the rows of the table, and whether all is well."""
    plain, _ = run(suite, paths, on_cachalot=False)
    cachalot, served = run(suite, paths, on_cachalot=True)
    counts = Counter(plain.values()), Counter(cachalot.values())
    rows: list[list[object]] = [
        [suite, "tests", kind, counts[0][kind], counts[1][kind]] for kind in ("passed", "failure", "error", "skipped")
    ]
    rows.append([suite, "served", "most bytes in a process", 0, served])
    differ = sorted(name for name in plain.keys() | cachalot.keys() if plain.get(name) != cachalot.get(name))
    rows += [[suite, "differs", name, plain.get(name, "missing"), cachalot.get(name, "missing")] for name in differ]
    worse = [name for name in differ if plain.get(name) == "passed" and cachalot.get(name) != "skipped"]
    return rows, bool(plain) and not worse and served > 0


def main() -> int:
    """Runs the suites, and writes the table."""
    out, folder, names = Path(sys.argv[1]), Path(sys.argv[2]).resolve(), sys.argv[3:] or ["cupy", "rmm", "numba"]
    rows, status = [], 0
    for name in names:
        paths = files(name, folder)
        if paths is None:
            print(f"skipped: {name} (the library or its tests are missing)")
            continue
        found, well = compare(name, paths)
        for row in found:
            print("\t".join(map(str, row)), flush=True)
        rows += found
        status |= not well
    with out.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["suite", "what", "name", "plain", "cachalot"], *rows])
    return int(status)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main())
