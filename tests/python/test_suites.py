"""The comparison of other projects' programs (`run/gpu/suites.py`), with scripts for programs and for the command."""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "run" / "gpu" / "suites.py"
# Runs what follows `--`, and tells the program by a variable that it is served.
COMMAND = 'while [ "$1" != -- ]; do echo "$1" >>"${0%/*}/options"; shift; done; shift; SERVED=7 exec "$@"'


class Suites(unittest.TestCase):
    """Each test has a folder of programs."""

    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.place = Path(self.folder.name)
        self.script("command", COMMAND)

    def script(self, name: str, text: str) -> None:
        """Writes a program."""
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def verdicts(self, *options: str) -> tuple[int, dict[tuple[str, str], tuple[str, str]]]:
        """Compares all programs. Returns the exit status, and status and verdict by program and way."""
        out = self.place / "out"
        programs = self.place / "programs"
        line = [sys.executable, "-B", str(SCRIPT), str(out), "--command", str(self.place / "command"), "--programs", str(programs)]
        ended = subprocess.run([*line, *options], capture_output=True, text=True, timeout=60, check=False)
        self.assertIn(ended.returncode, (0, 1), ended.stderr)
        with (out / "suites.csv").open() as file:
            rows = list(csv.DictReader(file))
        return ended.returncode, {(row["program"], row["way"]): (row["status"], row["equal"]) for row in rows}

    def served(self, text: str, *options: str) -> tuple[str, str]:
        """Returns status and verdict of one served program."""
        self.script("programs/project/one", text)
        status, rows = self.verdicts(*options)
        self.assertEqual(status, int(rows["project/one", "served"][1] == "NO"))
        return rows["project/one", "served"]

    def test_equal_bytes_are_equal(self) -> None:
        self.assertEqual(self.served("echo a; echo b >&2"), ("0", "yes"))

    def test_another_result_is_found(self) -> None:
        self.assertEqual(self.served("echo sum ${SERVED:-1}"), ("0", "NO"))
        self.assertIn("+sum 7", (self.place / "out/suites.txt").read_text())

    def test_another_error_is_found(self) -> None:
        self.assertEqual(self.served("echo $SERVED >&2"), ("0", "NO"))

    def test_another_status_is_found(self) -> None:
        self.assertEqual(self.served("exit ${SERVED:-0}"), ("7", "NO"))
        self.assertEqual(self.served("exit ${SERVED:-2}"), ("7", "NO"))

    def test_a_crash_is_found(self) -> None:
        self.assertEqual(self.served('[ -n "$SERVED" ] && kill -SEGV $$; exit 0'), ("-11", "NO"))

    def test_a_program_that_hangs_is_ended_with_its_children(self) -> None:
        self.assertEqual(self.served('[ -n "$SERVED" ] && { sleep 50 & wait; }; echo', "--seconds", "1"), ("late", "NO"))

    def test_a_failure_without_us_is_no_difference(self) -> None:
        self.assertEqual(self.served("echo waived; exit 2"), ("2", "fails plain"))

    def test_figures_may_differ(self) -> None:
        for text in (
            "took ${SERVED:-12.5} ms",
            "kernel (ms): ${SERVED:-0.25}",
            "copy: ${SERVED:-1.5}GB/s",
            "done in 0.${SERVED:-123} (ms)",
            "${SERVED:-12} MBytes/s and ${SERVED:-900.1} GFlop/s",
            "Time: ${SERVED:-1}",
            "memcopy:\t${SERVED:-10.25}",
            "at 0x${SERVED:-7f00}",
            "use ${SERVED:-99}% of it",
            "Current usage: ${SERVED:-85} bytes, diff: -${SERVED:-1} bytes, total: 8 bytes",
            "[PID ${SERVED:-85}]",
        ):
            with self.subTest(text):
                self.assertEqual(self.served(f'printf "%b\\n" "{text}"'), ("0", "figures only"))

    def test_results_may_not_differ(self) -> None:
        for text in ("${SERVED:-8} streams", "sum: ${SERVED:-0.25}", "total: ${SERVED:-8} bytes", "${SERVED:-8} GPUs", "max error 1e-${SERVED:-6}"):
            with self.subTest(text):
                self.assertEqual(self.served(f'echo "{text}"'), ("0", "NO"))

    def test_another_order_is_told(self) -> None:
        self.assertEqual(self.served('[ -n "$SERVED" ] && echo a; echo b; [ -n "$SERVED" ] || echo a'), ("0", "order only"))

    def test_a_program_that_differs_from_itself_is_told(self) -> None:
        # The count of runs is beside the programs, since every working directory is new.
        counted = f'echo >>"{self.place}/count"; wc -l <"{self.place}/count"'
        self.assertEqual(self.served(counted), ("0", "varies"))

    def test_a_program_opens_the_files_beside_it(self) -> None:
        self.script("programs/project/two/two", "cat kernel.ptx && pwd && echo >>kernel.ptx")
        (self.place / "programs/project/two/kernel.ptx").write_text("text\n")
        self.assertEqual(self.verdicts()[1]["project/two", "served"], ("0", "yes"))
        self.assertEqual((self.place / "programs/project/two/kernel.ptx").read_text(), "text\n")

    def test_ways_pass_their_options(self) -> None:
        self.script("programs/project/one", "echo")
        status, rows = self.verdicts("--ways", "plain,stitched")
        self.assertEqual((status, set(rows)), (0, {("project/one", "plain"), ("project/one", "stitched")}))
        self.assertEqual((self.place / "options").read_text().split(), ["run", "--settings", "policy:stitched"])


if __name__ == "__main__":
    unittest.main()
