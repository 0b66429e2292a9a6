"""The requests and the figures of the serving program (`gpu/serving.py`), without a GPU."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

GPU = Path(__file__).resolve().parent / "gpu"
sys.path.insert(0, str(GPU))

import serving  # noqa: E402

MIB = 1 << 20


class Serving(unittest.TestCase):
    """Each test has a folder."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_the_requests_of_the_repository_are_those_that_are_drawn(self) -> None:
        drawn = self.folder / "drawn.csv"
        with mock.patch.object(serving, "REQUESTS", drawn):
            serving.draw()
        self.assertEqual(drawn.read_text(), (GPU / "serving_requests.csv").read_text())

    def test_requests_of_both_forms_are_read(self) -> None:
        ours, azure = self.folder / "ours.csv", self.folder / "azure.csv"
        ours.write_text("seconds,prompt,answer\n7.5,100,20\n8.0,0,5\n")
        azure.write_text(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:15:46.6805900,100,20\n2023-11-16 18:15:47.1905900,0,5\n"
        )
        # A step takes 25 ms, and a request has a token at least.
        wanted = [serving.Request(0, 100, 20), serving.Request(20, 1, 5)]
        self.assertEqual([serving.read(ours), serving.read(azure)], [wanted, wanted])

    def test_a_former_installation_is_found_first(self) -> None:
        self.assertEqual(serving.settings("elastic", Path("/former")), {"PYTHONPATH": "/former"})
        self.assertEqual(serving.settings("elastic", None), {})
        self.assertLessEqual(set(serving.FORMER), set(serving.WAYS))

    def test_figures_are_those_of_the_calls(self) -> None:
        figures = serving.Figures(row=MIB)
        figures.tokens = 30
        # Two pages in 40 µs, and eight in 80: 20 and 10 µs a page, 12 on average.
        figures.grown(4 * MIB, 40_000)
        figures.grown(16 * MIB, 80_000)
        figures.grown(0, 30_000)
        figures.step(tokens=3, held=4 * MIB, used=6 * MIB)
        figures.step(tokens=10, held=20 * MIB, used=20 * MIB)
        figures.step(tokens=0, held=20 * MIB, used=20 * MIB)
        found = figures.summary()
        self.assertAlmostEqual(found.pop("rate"), 0.2)
        self.assertEqual(
            found,
            {
                "live": 10,
                "held": 20,
                # A quarter, and a half. A step without tokens counts for nothing.
                "wasted": 37.5,
                "used": 20,
                "ratio": 2,
                "growths": 2,
                "pages": 10,
                "median": 15,
                "p99": 20,
                "mean": 12,
            },
        )

    def test_a_table_has_a_column_for_each_figure(self) -> None:
        figures = serving.Figures(row=MIB)
        figures.tokens = 1
        figures.grown(2 * MIB, 1000)
        figures.step(tokens=1, held=2 * MIB, used=2 * MIB)
        head, row = serving.table({"elastic": figures.summary()})
        self.assertEqual(",".join(row), "elastic,1,2,50.0,2,2.000,1,1,1.0,1.0,1.0,1.00")
        self.assertEqual(len(row), len(head))


if __name__ == "__main__":
    unittest.main()
