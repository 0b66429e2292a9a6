"""``cachalot_gpu.torch``: what parks and wakes the memory of tags, and what it asks of the library."""

from __future__ import annotations

import unittest

import torch  # the stand-in

import cachalot_gpu.torch
import parking


class Parking(unittest.TestCase):
    """Tags of one device."""

    def setUp(self) -> None:
        self.library = parking.install()

    def fill(self, *tags: str) -> None:
        """Makes a request under each tag."""
        for tag in tags:
            with cachalot_gpu.torch.tag(tag):
                self.assertEqual(parking.request(self.library), tag)

    def test_every_wake_that_began_is_waited_for(self) -> None:
        self.fill("a", "b", "c")
        cachalot_gpu.torch.park()
        self.assertEqual(len(self.library.asleep), 3)
        failure = cachalot_gpu.CachalotError("a failing driver", 320)
        self.library.failures = {("wake_wait", 1): failure}
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "failing"):
            cachalot_gpu.torch.wake()
        self.assertEqual(self.library.waking, {(0, 1)})
        self.library.failures = {("wake_start", 1): failure}
        cachalot_gpu.torch.park("b", "c")
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "failing"):
            cachalot_gpu.torch.wake("b", "a", "c")
        self.assertEqual({number for _, number in self.library.asleep}, {1, 3}, "those before are awake")

    def test_tags_whose_pools_are_gone_are_left_out(self) -> None:
        handle = torch.cuda.graph_pool_handle()
        with torch.cuda.graph({}, pool=handle):
            cachalot_gpu.torch.tag_pool(handle, "graph")
        self.fill("weights")
        # The graph has ended, and its pool with it.
        del self.library.tags[0, handle]
        cachalot_gpu.torch.park()
        self.assertEqual(self.library.modes(), {"weights": parking.KEEP})
        cachalot_gpu.torch.wake()
        cachalot_gpu.torch.wake_start()
        cachalot_gpu.torch.wake_wait()
        self.assertEqual(self.library.asleep, {})
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "no pool has the tag"):
            cachalot_gpu.torch.park("graph")
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "no memory has the tag 'nothing'"):
            cachalot_gpu.torch.wake("nothing")

    def test_limits_reach_the_library_before_the_first_request_and_after(self) -> None:
        cachalot_gpu.torch.limit_tag("a", max=8 << 30, low=1 << 30, weight=300, clear=True)
        self.fill("a", "b")
        held = cachalot_gpu.torch.tag_held("a")
        self.assertEqual((held["max"], held["low"], held["weight"], held["clear"]), (8 << 30, 1 << 30, 300, True))
        self.assertEqual(held["charge"], sum(parking.State.pools.values()) // 2)
        cachalot_gpu.torch.limit_tag("b", low=5)
        held = cachalot_gpu.torch.tag_held("b")
        self.assertEqual((held["max"], held["low"], held["weight"], held["clear"]), (None, 5, 100, False))
        cachalot_gpu.torch.unlimit_tag("b")
        self.assertEqual(cachalot_gpu.torch.tag_held("b")["weight"], 0)
        self.assertEqual([number for _, number in self.library.limits], [1])

    def test_a_tag_is_trimmed_by_its_name(self) -> None:
        self.fill("a", "b")
        cachalot_gpu.torch.trim_tag("a", keep=5)
        cachalot_gpu.torch.trim_tag("a")
        self.assertEqual([keep for _, keep in self.library.trimmed], [5, 0])
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "no memory has the tag 'nothing'"):
            cachalot_gpu.torch.trim_tag("nothing")

    def test_limits_without_a_meaning_are_refused(self) -> None:
        for limits in ({"max": 0}, {"max": -1}, {"low": -1}, {"weight": 0}, {"weight": 1 << 32}, {"max": 1 << 64}):
            with self.assertRaisesRegex(cachalot_gpu.CachalotError, "limits of 'a'"):
                cachalot_gpu.torch.limit_tag("a", **limits)
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "`low` is above `max`"):
            cachalot_gpu.torch.limit_tag("a", max=1, low=2)
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "no memory has the tag 'nothing'"):
            cachalot_gpu.torch.tag_held("nothing")
        self.assertEqual(self.library.limits, {})


if __name__ == "__main__":
    unittest.main(verbosity=2)
