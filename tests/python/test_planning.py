"""``cachalot_gpu.plan()``."""

from __future__ import annotations

import random
import unittest

import cachalot_gpu
from cachalot_gpu import Buffer, Plan, ConfigurationError, plan


class Planning(unittest.TestCase):
    """Plans, and what cannot be planned."""

    def test_a_plan(self) -> None:
        buffers = [Buffer(0, 3, 4096, alignment=256), (1, 4, 1024), (3, 5, 2048, 512)]
        self.assertEqual(plan(buffers), Plan([0, 4096, 0], 5120, 5120, True))

    def test_buffers_do_not_overlap(self) -> None:
        chosen = random.Random(1)
        starts = [chosen.randrange(50) for _ in range(200)]
        buffers = [Buffer(at, at + chosen.randint(1, 9), chosen.randint(1, 5000), 64) for at in starts]
        found = plan(iter(buffers), deadline=1)
        placed = list(zip(buffers, found.offsets))
        for number, (one, start) in enumerate(placed):
            self.assertEqual(start % 64, 0)
            self.assertLessEqual(start + one.size, found.peak_bytes)
            for other, base in placed[:number]:
                apart = one.upper <= other.lower or other.upper <= one.lower
                self.assertTrue(apart or start + one.size <= base or base + other.size <= start)
        self.assertLessEqual(found.lower_bound_bytes, found.peak_bytes)

    def test_fixed_offsets(self) -> None:
        self.assertEqual(plan([(0, 2, 100, 1, 50), (0, 2, 50)]), Plan([50, 0], 150, 150, True))

    def test_no_buffers(self) -> None:
        self.assertEqual(plan([]), Plan([], 0, 0, True))

    def test_gaps(self) -> None:
        turns = [Buffer(0, 9, 100, gaps=((3, 6), (7, 8, 0, 60))), (3, 6, 100), (7, 8, 40)]
        self.assertEqual(plan(turns), Plan([0, 0, 60], 100, 100, True))
        with self.assertRaisesRegex(ValueError, "a gap is"):
            plan([Buffer(0, 9, 100, gaps=((3,),))])

    def test_mistakes(self) -> None:
        with self.assertRaisesRegex(ConfigurationError, r"^buffers\[1\]: column \d: size `-1`"):
            plan([(0, 1, 1), (0, 1, -1)])
        with self.assertRaisesRegex(ConfigurationError, r"^buffers\[1\]: bytes 50\.\.150 overlap 0\.\.100 of buffers\[0\]"):
            plan([(0, 2, 100, 1, 0), (1, 3, 100, 1, 50)])
        self.assertRaisesRegex(ValueError, "the deadline must be above 0, not 0", plan, [(0, 1, 1)], 0)
        self.assertTrue(issubclass(ConfigurationError, ValueError) and issubclass(ConfigurationError, cachalot_gpu.CachalotError))


if __name__ == "__main__":
    unittest.main()
