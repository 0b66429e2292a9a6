"""What is seen from outside."""

from __future__ import annotations

import json
import pickle
import tempfile
import unittest
from pathlib import Path

import torch

from case import MIB, Case, block


class Snapshots(Case):
    """What is seen from outside."""

    def record(self, **options: object) -> None:
        torch.cuda.memory._record_memory_history(**options)
        self.addCleanup(torch.cuda.memory._record_memory_history, None)

    def test_the_last_event_is_that_a_segment_was_given_back(self) -> None:
        self.record()
        tensor = block(30 * MIB)
        del tensor
        torch.cuda.empty_cache()
        snapshot = torch.cuda.memory._snapshot()
        self.assertEqual([event["action"] for event in snapshot["device_traces"][0]][-1], "segment_free")
        json.dumps(snapshot)

    def test_stacks(self) -> None:
        for context, wanted, size in [("all", True, 31 * MIB), (None, False, 33 * MIB)]:
            with self.subTest(context):
                self.record(context=context, stacks="python")
                tensor = block(size)
                events = torch.cuda.memory._snapshot()["device_traces"][0]
                mine = [event for event in events if event["action"] == "alloc" and event["size"] == size]
                self.assertEqual(len(mine), 1)
                frames = [frame["name"] for frame in mine[0].get("frames", [])]
                self.assertEqual("test_stacks" in frames, wanted, frames)
                del tensor

    def test_the_viewer_draws_them(self) -> None:
        from torch.cuda import _memory_viz

        self.record()
        kept = [block(size * MIB) for size in range(1, 30)]
        del kept[::2]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "snapshot.pickle"
            torch.cuda.memory._dump_snapshot(str(file))
            with file.open("rb") as opened:
                snapshot = pickle.load(opened)
        for draw in (_memory_viz.trace_plot, _memory_viz.segment_plot):
            self.assertIn("MemoryViz", draw(snapshot))
        self.assertIn("total_reserved: ", _memory_viz.segsum(snapshot))
        self.assertIn("alloc", _memory_viz.trace(snapshot))
        del kept

    def test_a_snapshot_holds_what_is_allocated(self) -> None:
        tensor = block(33 * MIB)
        blocks = [piece for segment in torch.cuda.memory_snapshot() for piece in segment["blocks"]]
        mine = [piece for piece in blocks if piece["address"] == tensor.data_ptr()]
        self.assertEqual(
            [(piece["requested_size"], piece["state"]) for piece in mine], [(33 * MIB, "active_allocated")]
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
