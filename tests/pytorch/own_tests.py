"""PyTorch's own test/test_cuda.py, under PyTorch's allocator and with cachalot in its place.

    python own_tests.py [--seconds S] [--workers N] [--only WORD] TESTS OUT

``TESTS`` is the folder with ``test_cuda.py`` of the installed version of PyTorch. Prints which tests pass under both
allocators and which under one only, and writes ``OUT/own_tests.csv`` and ``OUT/own_tests.json``. Ends with status 1 if
fewer than 98 % of the tests that pass under PyTorch's allocator pass under cachalot.

Several processes run the tests side by side, each with one test at a time and a time limit for each. A test that
fails runs again in a fresh process, since tests of one process see what the earlier tests have left. Tests that fill
the memory or depend on time run alone at the end. ``CACHALOT_CONF`` gives cachalot's settings.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import tables

CLASSES = [
    "TestCuda",
    "TestCudaMallocAsync",
    "TestBlockStateAbsorption",
    "TestCachingHostAllocatorCudaGraph",
    "TestMemPool",
    "TestCudaOptimsCUDA",
    "TestCudaDeviceParametrizedCUDA",
    "TestFXMemoryProfiler",
]
"""The classes about the allocator, graphs, pools and snapshots. The others test autocast, kernels that are compiled at
run time, green contexts and storage."""

ALONE = {
    # Fills the memory, or compares what the driver says of it.
    "test_out_of_memory_retry",
    "test_set_per_process_memory_fraction",
    "test_caching_allocator_record_stream_oom",
    "test_cuda_kernel_loop_overflow_large",
    "test_randint_generation_for_large_numel",
    "test_device_memory_used",
    "test_repeat_graph_capture_cublas_workspace_memory",
    # Depends on what the device does at one moment.
    "test_graph_concurrent_replay",
    "test_graph_external_wait_and_record",
    "test_record_stream",
    "test_to_non_blocking",
}
SLOW = ("TestMemPool", "test_cpp_memory_snapshot_pickle", "test_memory_compile_regions", "test_allocator_fuzz")
"""Tests that compile or take many steps: they begin first, and have the longer limit."""

LIMIT_S, SLOW_LIMIT_S, START_LIMIT_S = 60, 200, 120
LEAST_SHARE = 0.98
MODES = ("pytorch", "cachalot")
HERE = Path(__file__).resolve().parent
Result = dict[str, Any]


def is_slow(name: str) -> bool:
    """Returns whether a test may take long."""
    return any(word in name for word in SLOW)


# ---- The process that runs tests ----


def listed(module: Any) -> list[str]:
    """Returns the names of the tests, as ``class.method``."""
    import unittest

    found = []
    for name in CLASSES:
        if case := getattr(module, name, None):
            found += [f"{name}.{method}" for method in unittest.defaultTestLoader.getTestCaseNames(case)]
    return found


def run_one(module: Any, name: str) -> Result:
    """Runs one test. Returns its outcome, with the last line of the first error or the reason of a skip."""
    import unittest

    import torch

    began = time.perf_counter()
    result = unittest.TestResult()
    case, method = name.split(".")
    # A suite also runs the fixtures of the class.
    unittest.TestSuite([getattr(module, case)(method)]).run(result)
    seconds = round(time.perf_counter() - began, 2)
    text = ""
    if problems := [trace for _, trace in result.failures + result.errors]:
        outcome, text = "failed", problems[0].strip()
    elif result.unexpectedSuccesses:
        outcome, text = "failed", "passes, and was expected to fail"
    elif result.skipped:
        outcome, text = "skipped", result.skipped[0][1]
    else:
        outcome = "passed"
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return {"outcome": outcome, "text": text, "seconds": seconds}


def first_line(text: str) -> str:
    """Returns the line of a stack trace that names the exception."""
    lines = [line for line in text.splitlines() if line and not line.startswith((" ", "Traceback", "To execute"))]
    return next((line for line in lines if "Error" in line or "Exception" in line), lines[-1] if lines else "")[:300]


def work(tests: Path) -> None:
    """Answers each line with the result of the test of that name. The answers have the first standard output alone."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # The tests look for the name of their file in stack traces.
    sys.path.insert(0, str(tests))
    os.chdir(tests)
    import test_cuda
    import torch

    torch.cuda.init()
    hello = {"allocator": torch.cuda.get_allocator_backend(), "tests": listed(test_cuda)}
    print(json.dumps(hello), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(run_one(test_cuda, line.strip())), file=answers, flush=True)


# ---- The process that distributes them ----


class Worker:
    """A process that runs tests, as the distributing process sees it."""

    def __init__(self, mode: str, tests: Path, out: Path, number: int) -> None:
        paths = [str(HERE / "enabled")] if mode == "cachalot" else []
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "TORCH_EXTENSIONS_DIR": str(Path(tempfile.gettempdir()) / f"own-tests-{os.getpid()}" / f"{mode}-{number}"),
            "OMP_NUM_THREADS": "2",
        }
        self.log = (out / f"own_tests-{mode}-{number}.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work", str(tests)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            start_new_session=True,
        )
        self.hello = self.heard(START_LIMIT_S)

    def heard(self, limit: float) -> Result:
        """Returns the next answer, or what has happened instead."""
        assert self.process.stdout
        if not select.select([self.process.stdout], [], [], limit)[0]:
            self.end()
            return {"outcome": "failed", "text": f"TimeoutError: took more than {limit:.0f} s", "seconds": limit}
        if line := self.process.stdout.readline():
            answer: Result = json.loads(line)
            return answer
        code = self.process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return {"outcome": "failed", "text": f"ProcessError: the process ended with {how}", "seconds": 0.0}

    def told(self, name: str, limit: float) -> Result:
        """Returns the result of a test."""
        assert self.process.stdin
        try:
            self.process.stdin.write(f"{name}\n".encode())
            self.process.stdin.flush()
        except OSError:
            pass  # what has happened to the process is the answer
        return self.heard(limit)

    def end(self) -> None:
        """Ends the process and what it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()


class Run:
    """The tests under one allocator."""

    def __init__(self, mode: str, tests: Path, out: Path, deadline: float) -> None:
        self.mode, self.tests, self.out, self.deadline = mode, tests, out, deadline
        self.results: dict[str, Result] = {}

    def share(self, names: list[str], workers: int, fresh: bool) -> None:
        """Runs tests by several processes side by side; with `fresh`, each test has a process of its own."""
        waiting = collections.deque(sorted(names, key=lambda name: not is_slow(name)))
        count = min(workers, len(names))
        threads = [threading.Thread(target=self.serve, args=(waiting, number, fresh)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def serve(self, waiting: collections.deque[str], number: int, fresh: bool) -> None:
        """Gives the waiting tests to a process, and replaces the process after a failure."""
        worker: Worker | None = None
        while time.monotonic() < self.deadline:
            try:
                name = waiting.popleft()
            except IndexError:
                break
            worker = worker or Worker(self.mode, self.tests, self.out, number)
            limit = SLOW_LIMIT_S if is_slow(name) else LIMIT_S
            result = worker.told(name, min(limit, max(1.0, self.deadline - time.monotonic())))
            if fresh and name in self.results:
                result["again"] = True
            self.results[name] = result
            if fresh or result["outcome"] == "failed":
                worker.end()
                worker = None
        if worker:
            worker.end()

    def all(self, names: list[str], workers: int) -> None:
        """Runs every test: side by side, then the tests that run alone, then the failed ones again."""
        alone = [name for name in names if name.split(".")[1] in ALONE]
        self.share([name for name in names if name not in alone], workers, fresh=False)
        self.share(alone, 1, fresh=False)
        failed = [name for name, result in self.results.items() if result["outcome"] == "failed"]
        self.share([name for name in failed if name not in alone], workers, fresh=True)
        self.share([name for name in failed if name in alone], 1, fresh=True)


def outcome(results: dict[str, Result], name: str) -> str:
    """Returns the outcome of a test, also of one for which no time was left."""
    return str(results.get(name, {"outcome": "not run"})["outcome"])


def describe(results: dict[str, Result], name: str) -> str:
    """Returns the outcome of a test with the first line of the reason."""
    result = results.get(name, {"outcome": "not run", "text": ""})
    return f"{result['outcome']}: {first_line(result['text'])}" if result["text"] else result["outcome"]


def report(names: list[str], runs: dict[str, dict[str, Result]]) -> tuple[list[list[object]], str, float]:
    """Returns the table, the names of the tests, and the share of the tests passed under PyTorch's allocator that pass under cachalot."""
    native, own = (runs[mode] for mode in MODES)
    groups: dict[str, list[str]] = collections.defaultdict(list)
    for name in names:
        groups[f"{outcome(native, name) == 'passed'} {outcome(own, name) == 'passed'}"].append(name)
    both, lost = groups["True True"], groups["True False"]
    share = len(both) / max(1, len(both) + len(lost))
    rows: list[list[object]] = [["class", "tests", "passed under PyTorch's allocator", "passed under both"]]
    for case in CLASSES:
        own_names = [name for name in names if name.startswith(f"{case}.")]
        native_passes = [name for name in own_names if outcome(native, name) == "passed"]
        passes = sum(name in both for name in native_passes)
        rows.append([case, len(own_names), len(native_passes), passes])
    lines = [f"{len(both)} of {len(both) + len(lost)} pass under cachalot: {share:.1%}", ""]
    for title, group in [
        ("passed under PyTorch's allocator only", lost),
        ("passed under cachalot only", groups["False True"]),
        ("failed or skipped under both", groups["False False"]),
    ]:
        lines += [f"{title}: {len(group)}", ""]
        for name in group:
            row = f"- {name}: cachalot {describe(own, name)}"
            if title.startswith("failed") or title.startswith("passed under cachalot"):
                row = f"- {name}: PyTorch {describe(native, name)}"
                if outcome(own, name) != outcome(native, name):
                    row += f"; cachalot {describe(own, name)}"
            lines.append(row)
        lines.append("")
    return rows, "\n".join(lines), share


def main() -> int:
    """Runs the tests in both ways, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=480, help="no test begins after this time")
    parser.add_argument("--workers", type=int, default=max(1, min(12, (os.cpu_count() or 4) - 2)))
    parser.add_argument("--only", default="", help="the tests whose name contains this word")
    parser.add_argument("tests", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("skipped: PyTorch finds no GPU")
        return 0
    tests, out = arguments.tests.resolve(), arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    names: list[str] = []
    runs: dict[str, dict[str, Result]] = {}
    for number, mode in enumerate(MODES):
        # The first process also compiles what the others load.
        first = Worker(mode, tests, out, 0)
        first.end()
        if "tests" not in first.hello:
            raise SystemExit(f"{mode}: {first.hello['text']}; see {first.log.name}")
        names = names or [name for name in first.hello["tests"] if arguments.only in name]
        left = arguments.seconds - (time.monotonic() - began)
        run = Run(mode, tests, out, time.monotonic() + left / (len(MODES) - number))
        run.all(names, arguments.workers)
        runs[mode] = run.results
        counts = collections.Counter(outcome(run.results, name) for name in names)
        again = sum("again" in result and result["outcome"] == "passed" for result in run.results.values())
        print(
            f"{mode} (allocator {first.hello['allocator']}): {dict(counts)}, {again} of them alone only, "
            f"{time.monotonic() - began:.0f} s so far",
            flush=True,
        )
        (out / "own_tests.json").write_text(json.dumps({"tests": names, "runs": runs}, indent=1))
    rows, text, share = report(names, runs)
    print(tables.write(out / "own_tests.csv", rows))
    print(text)
    return 0 if share >= LEAST_SHARE else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(Path(sys.argv[2]))
    else:
        sys.exit(main())
