"""Blocks that several streams use."""

from __future__ import annotations

import unittest

import torch

from case import MIB, Case, block


class Streams(Case):
    """Blocks that several streams use."""

    def test_a_recorded_stream_keeps_a_block(self) -> None:
        tensor = torch.ones(1000, device="cuda")
        address = tensor.data_ptr()
        other = torch.cuda.Stream()
        # A kernel is loaded when it is first used, which waits for the device.
        tensor.add_(1)
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            torch.cuda._sleep(200_000_000)
            tensor.add_(1)
        tensor.record_stream(other)
        del tensor
        again = torch.empty(1000, device="cuda")
        self.assertNotEqual(again.data_ptr(), address)
        del again
        other.synchronize()
        kept = [torch.empty(1000, device="cuda") for _ in range(2)]
        self.assertIn(address, [tensor.data_ptr() for tensor in kept])

    def test_streams_do_not_share(self) -> None:
        tensor = block(4 * MIB)
        address = tensor.data_ptr()
        del tensor
        with torch.cuda.stream(torch.cuda.Stream()):
            self.assertNotEqual(block(4 * MIB).data_ptr(), address)
        self.assertEqual(block(4 * MIB).data_ptr(), address)


if __name__ == "__main__":
    unittest.main(verbosity=2)
