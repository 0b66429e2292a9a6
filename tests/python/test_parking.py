"""``cachalot_gpu.torch``: what parks and wakes the memory of tags, and what it asks of the library."""

from __future__ import annotations

import threading
import unittest

import torch  # the stand-in

import cachalot_gpu
import parking
from cachalot_gpu.torch import Tag, park, spilled, wake


class Parking(unittest.TestCase):
    """Tags of one device."""

    def setUp(self) -> None:
        self.library = parking.install()

    def fill(self, *tags: str) -> None:
        """Makes a request under each tag."""
        for tag in tags:
            with Tag(tag):
                self.assertEqual(parking.request(self.library), tag)

    def test_every_wake_that_began_is_waited_for(self) -> None:
        self.fill("a", "b", "c")
        park()
        self.assertEqual(len(self.library.asleep), 3)
        failure = cachalot_gpu.CachalotError("a failing driver", 320)
        self.library.failures = {("wake_wait", 1): failure}
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "failing"):
            wake()
        self.assertEqual(self.library.waking, {(0, 1)})
        self.library.failures = {("wake_start", 1): failure}
        park(Tag("b"), Tag("c"))
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "failing"):
            wake(Tag("b"), Tag("a"), Tag("c"))
        self.assertEqual({number for _, number in self.library.asleep}, {1, 3}, "those before are awake")

    def test_a_wake_without_waiting_is_completed_by_one_that_waits(self) -> None:
        self.fill("a", "b")
        park()
        wake(wait=False)
        self.assertEqual([Tag(name).parking.state for name in "ab"], ["waking", "waking"])
        Tag("b").wake()
        self.assertEqual([Tag(name).parking.state for name in "ab"], ["waking", "awake"])
        wake()
        self.assertEqual(self.library.asleep, {})

    def test_tags_whose_pools_are_gone_are_left_out(self) -> None:
        handle = torch.cuda.graph_pool_handle()
        with torch.cuda.graph({}, pool=handle):
            Tag("graph").add_pool(handle)
        self.fill("weights")
        # The graph has ended, and its pool with it.
        del self.library.tags[0, handle]
        park()
        self.assertEqual(self.library.modes(), {"weights": parking.KEEP})
        wake()
        wake(wait=False)
        self.assertEqual(self.library.asleep, {})
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "no pool has the tag"):
            Tag("graph").park()
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "no memory has the tag 'nothing' on device 0"):
            Tag("nothing").wake()

    def test_a_tag_has_a_pool_and_takes_others(self) -> None:
        weights = Tag("weights")
        self.assertIs(weights.pool(), Tag("weights").pool())
        other = torch.cuda.MemPool()
        weights.add_pool(other)
        self.assertEqual(self.library.tag_of(other.id), "weights")
        weights.park(keep=False, zero=True, streams=True)
        self.assertEqual(self.library.modes(), {"weights": parking.ZERO})
        self.assertEqual([call[4] for call in self.library.calls if call[0] == "park"][-1], 1)
        weights.wake()

    def test_spilled_requests_go_to_a_pool_on_the_host(self) -> None:
        routes = parking.State.routes.__dict__.setdefault("all", [])
        with spilled():
            (first,) = routes
            with spilled(1), Tag("inner"):
                self.assertEqual(parking.request(self.library), "inner")
        with spilled():
            self.assertEqual(routes, [first])
        self.assertEqual((routes, self.library.spilled), ([], [(0, (0, 1)), (1, (0, 2))]))
        parking.install().has_spill = False
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "not set"), spilled():
            self.fail("nothing says how much memory of the host may serve")

    def test_tags_of_one_name_are_the_same_tag(self) -> None:
        self.assertEqual(Tag("a"), Tag("a", "cuda"))
        self.assertEqual(len({Tag("a", 1), Tag("a", "cuda:1"), Tag("a", torch.device("cuda", 1)), Tag("a")}), 2)
        self.assertEqual([repr(Tag("a")), repr(Tag("a", "cuda:1"))], ["Tag('a')", "Tag('a', 1)"])
        self.assertEqual((Tag("a").device, Tag("a", 1).device), (0, 1))
        with self.assertRaises(ValueError):
            Tag("a", "cpu")

    def test_a_tag_that_names_a_device_is_parked_there(self) -> None:
        self.fill("a")
        with torch.cuda.device(1):
            self.fill("a", "b")
        park(Tag("a", 1))
        self.assertEqual(set(self.library.asleep), {(1, 1)})
        park()
        park(device=1)
        self.assertEqual(set(self.library.asleep), {(0, 1), (1, 1), (1, 2)})
        wake(Tag("b", 1), Tag("a"))
        self.assertEqual(set(self.library.asleep), {(1, 1)})

    def test_nested_tags_end_in_their_order_and_in_their_thread(self) -> None:
        outer, inner = Tag("outer"), Tag("inner")
        found: list[str | None] = []
        with outer as entered:
            self.assertIs(entered, outer)
            with self.assertRaises(KeyError), inner, outer:
                found.append(parking.request(self.library))
                raise KeyError
            with inner:
                thread = threading.Thread(target=lambda: found.append(parking.request(self.library)))
                thread.start()
                thread.join()
                found.append(parking.request(self.library))
            found.append(parking.request(self.library))
        found.append(parking.request(self.library))
        self.assertEqual(found, ["outer", None, "inner", "outer", None])

    def test_limits_reach_the_library_before_the_first_request_and_after(self) -> None:
        a, b = Tag("a"), Tag("b")
        a.limit(max_bytes=8 << 30, low_bytes=1 << 30, weight=300, clear=True)
        self.fill("a", "b")
        held = a.held
        self.assertEqual((held.max_bytes, held.low_bytes, held.weight, held.clear), (8 << 30, 1 << 30, 300, True))
        self.assertEqual(held.charge_bytes, sum(parking.State.pools.values()) // 2)
        b.limit(low_bytes=5)
        held = b.held
        self.assertEqual((held.max_bytes, held.low_bytes, held.weight, held.clear), (None, 5, 100, False))
        b.unlimit()
        self.assertEqual(b.held.weight, 0)
        self.assertEqual([number for _, number in self.library.limits], [1])

    def test_a_tag_is_trimmed(self) -> None:
        self.fill("a", "b")
        Tag("a").trim(keep_bytes=5)
        Tag("a").trim()
        self.assertEqual([keep for _, keep in self.library.trimmed], [5, 0])
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "no memory has the tag 'nothing'"):
            Tag("nothing").trim()

    def test_limits_without_a_meaning_are_refused(self) -> None:
        wrong: list[dict[str, int]] = [{"max_bytes": 0}, {"max_bytes": -1}, {"max_bytes": 1 << 64}, {"low_bytes": -1}]
        for limits in [*wrong, {"weight": 0}, {"weight": 1 << 32}]:
            with self.assertRaisesRegex(cachalot_gpu.ConfigurationError, "limits of 'a'"):
                Tag("a").limit(**limits)
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "`low` is above `max`"):
            Tag("a").limit(max_bytes=1, low_bytes=2)
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "no memory has the tag 'nothing'"):
            _ = Tag("nothing").held
        self.assertEqual(self.library.limits, {})

    def test_a_request_under_a_parked_tag_may_fall_back(self) -> None:
        self.fill("a")
        Tag("a").set_fallback()
        Tag("a").set_fallback(False)
        self.assertEqual(self.library.fallbacks, [(0, 1, 1), (0, 1, 0)])


if __name__ == "__main__":
    unittest.main(verbosity=2)
