"""The libraries' own tests of memory, as they are and with cachalot as the allocator.

    pip install --target SITE ./python filecheck
    PYTHONPATH=SITE python tests/python/gpu/suites.py OUT.csv FOLDER [SUITE...]

SUITE: cupy, rmm, numba, cuda_core; all by default. numba-cuda's tests are in its package. FOLDER has
the others, of the versions that are installed: `cupy/` with `pyproject.toml` and `tests/` of CuPy's
repository, `rmm/` with `python/rmm/rmm/tests` of RMM's, and `cuda-python/` with `cuda_core/tests`,
`cuda_core/pytest.ini` and `cuda_python_test_helpers` of cuda-python's. A suite whose library or tests
are missing is a line `skipped`.

The tables count tests by outcome, and name each test whose outcome differs. Such a test runs once more
by itself, both ways: the second outcomes count, and if they are equal the row says `varies`. A run that
does not end within its time counts with the tests that it has come to: a row `not run` has the number
of those that the other run has come to besides. OUT.csv gets the same: suite, what, name, plain,
cachalot. The exit status is 1 if a test fails with cachalot only, if a run has not ended, or if
cachalot has served no memory.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
LONGEST = {"cupy": 200, "cuda_core": 250}
"""The most seconds of one run, by suite. Both compile kernels: CuPy one for each operation and type."""
LONGEST_OTHER = 90
LONGEST_AGAIN = 60
"""The most seconds for the tests that have differed."""

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
CUDA_CORE = (
    "memory",
    "test_context.py",
    "test_device.py",
    "test_event.py",
    "test_green_context.py",
    "test_launcher.py",
    "test_memory.py",
    "test_memory_peer_access.py",
    "test_module.py",
    "test_object_protocols.py",
    "test_stream.py",
    "test_tensor_map.py",
    "test_utils.py",
    "test_utils_dlpack.py",
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


class Run(NamedTuple):
    """What a run of tests has left."""

    outcomes: dict[str, str]
    """The outcome of each test, by its address: the file, `::`, and the name in the file."""
    served: int
    """The most bytes that cachalot has served in a process."""
    ended: bool
    """Whether the run came to its end."""


def files(suite: str, folder: Path) -> list[Path] | None:
    """Returns the files of a suite's tests, or `None` if the library or the tests are missing."""
    try:
        found = importlib.util.find_spec({"numba": "numba_cuda", "cuda_core": "cuda.core"}.get(suite, suite))
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None:
        return None
    tests, names = {
        "numba": (Path(found.origin).parent / "numba" / "cuda" / "tests", NUMBA),
        "cupy": (folder / "cupy" / "tests" / "cupy_tests", CUPY),
        "rmm": (folder / "rmm", RMM),
        "cuda_core": (folder / "cuda-python" / "cuda_core" / "tests", CUDA_CORE),
    }[suite]
    paths = [tests / name for name in names]
    return [path for path in paths if path.exists()] or None


def run(suite: str, tests: list[str], on_cachalot: bool, scratch: Path, longest: int) -> Run:
    """Runs tests, given by files or addresses, in eight processes, and ends them after `longest` seconds."""
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        found, used = Path(place) / "outcomes", Path(place) / "used"
        used.mkdir()
        # CuPy and cuda.core have most of their tests in one file.
        spread = "worksteal" if suite in ("cupy", "cuda_core") else "loadfile"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "8", "--dist", spread, "-p", "no:cacheprovider"]
        command += ["-p", "outcomes", "--tb=line", "--continue-on-collection-errors"]
        command += [*tests, *(f"--deselect={name}" for name in LEFT_OUT)]
        environment = os.environ | {"CACHALOT_SUITE": suite, "CACHALOT_SUITE_USED": str(used)}
        environment["CACHALOT_SUITE_OUTCOMES"] = str(found)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
        if on_cachalot:
            command += ["-p", "on_cachalot"]
            if suite == "numba":
                environment["NUMBA_CUDA_MEMORY_MANAGER"] = "cachalot_gpu.numba"
        directory = Path(tests[0].split("::")[0]).parent
        ended, said = finish(command, environment, directory, longest)
        lines = found.read_text().splitlines() if found.exists() else []
        outcomes: dict[str, str] = {}
        for address, outcome in (line.rsplit("\t", 1) for line in lines):
            # A test that has passed may still fail at its end.
            if outcomes.get(address, "passed") in ("begun", "passed"):
                outcomes[address] = outcome
        begun = [address for address, outcome in outcomes.items() if outcome == "begun"]
        outcomes = {address: outcome for address, outcome in outcomes.items() if outcome != "begun"}
        if not ended:
            print(f"{suite}: not done in {longest} s, {len(outcomes)} tests are; these were under way: {begun}")
        elif not outcomes:
            print(said[-8000:])
        return Run(outcomes, max((int(file.read_text()) for file in used.iterdir()), default=0), ended)


def finish(command: list[str], environment: dict[str, str], directory: Path, longest: int) -> tuple[bool, str]:
    """Runs a command, and ends it with its children after `longest` seconds. Returns whether it came to
    its end, and what it wrote."""
    with tempfile.TemporaryFile() as output:
        started = subprocess.Popen(
            command, env=environment, cwd=directory, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            started.wait(timeout=longest)
            ended = True
        except subprocess.TimeoutExpired:
            ended = False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()
        output.seek(0)
        return ended, output.read().decode(errors="replace")


def compare(suite: str, paths: list[Path]) -> tuple[list[list[object]], bool]:
    """Runs a suite both ways. Returns the rows of the table, and whether all is well."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if suite == "numba":
            # In the package, pytest would import them as parts of a package `cuda`.
            paths = [Path(shutil.copy(path, scratch)) for path in paths]
            (scratch / "conftest.py").write_text(NUMBA_FIXTURES)
        tests, longest = [*map(str, paths)], LONGEST.get(suite, LONGEST_OTHER)
        plain, cachalot = (run(suite, tests, way, scratch, longest) for way in (False, True))
        rows = counts(suite, plain, cachalot)
        both = plain.outcomes.keys() & cachalot.outcomes.keys()
        differ = sorted(name for name in both if plain.outcomes[name] != cachalot.outcomes[name])
        outcomes = [plain.outcomes, cachalot.outcomes]
        if differ:
            outcomes = [run(suite, differ, way, scratch, LONGEST_AGAIN).outcomes for way in (False, True)]
    worse = False
    for name in differ:
        pair = [found.get(name, "missing") for found in outcomes]
        what = "varies" if pair[0] == pair[1] else "differs"
        worse |= what == "differs" and pair[0] == "passed" and pair[1] != "skipped"
        rows.append([suite, what, short(name, paths), *pair])
    well = plain.ended and cachalot.ended and not worse and bool(both) and cachalot.served > 0
    return rows, well


def counts(suite: str, plain: Run, cachalot: Run) -> list[list[object]]:
    """Returns the rows of a table that count."""
    rows: list[list[object]] = []
    tally = Counter(plain.outcomes.values()), Counter(cachalot.outcomes.values())
    for kind in ("passed", "failure", "error", "skipped"):
        rows.append([suite, "tests", kind, tally[0][kind], tally[1][kind]])
    names = plain.outcomes.keys(), cachalot.outcomes.keys()
    rows.append([suite, "not run", "tests of the other run", len(names[1] - names[0]), len(names[0] - names[1])])
    rows.append([suite, "served", "most bytes in a process", 0, cachalot.served])
    return rows


def short(address: str, paths: list[Path]) -> str:
    """Returns a test's address without the folder of the suite."""
    return address.removeprefix(f"{Path(os.path.commonpath([path.parent for path in paths]))}/")


def main() -> int:
    """Runs the suites, and writes the table."""
    # The tests are in a session of their own, and end with this process only if it can end them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    out, folder = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
    names = sys.argv[3:] or ["cupy", "rmm", "numba", "cuda_core"]
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
