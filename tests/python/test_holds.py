"""``cachalot_gpu.torch.hold_frees``: which devices are held for how long."""

from __future__ import annotations

import unittest
from typing import Any

import torch  # the stand-in

import cachalot_gpu
import parking
from cachalot_gpu import _library
from cachalot_gpu.torch import hold_frees


class Library(parking.Library):
    """The functions of the library that hold frees off."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[str, int]] = []

    def cachalot_hold_begin(self, handle: Any, device: int) -> None:
        if device == 7:
            raise cachalot_gpu.CachalotError("no such device", 101)
        self.held.append(("begin", device))

    def cachalot_hold_end(self, handle: Any, device: int) -> None:
        self.held.append(("end", device))


class Holds(unittest.TestCase):
    """Devices by their numbers."""

    def setUp(self) -> None:
        parking.install()
        self.library = Library()
        _library.library = lambda: self.library  # type: ignore[assignment,return-value]

    def test_a_block_holds_its_devices_also_when_it_fails(self) -> None:
        with self.assertRaises(KeyError), hold_frees(0, 1):
            self.assertEqual(self.library.held, [("begin", 0), ("begin", 1)])
            raise KeyError
        self.assertEqual(self.library.held[2:], [("end", 1), ("end", 0)])

    def test_without_a_device_the_current_one_is_held(self) -> None:
        with hold_frees():
            self.assertEqual(self.library.held, [("begin", torch.cuda.current_device())])

    def test_a_device_that_is_refused_holds_none(self) -> None:
        with self.assertRaises(cachalot_gpu.CachalotError), hold_frees(0, 7):
            self.fail("nothing is held")
        self.assertEqual(self.library.held, [("begin", 0), ("end", 0)])


if __name__ == "__main__":
    unittest.main()
