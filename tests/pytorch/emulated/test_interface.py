"""The whole allocator in a real PyTorch on the emulated driver: everything that needs no kernel.

    tests/pytorch/emulated.sh 2.15

Contents go to the device and back by copies.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import tempfile
import unittest
from pathlib import Path
from typing import Any

import torch

import cachalot_gpu.torch as cachalot

MIB = 1 << 20
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
CONFIG = os.environ.get("CACHALOT_TEST_CONFIG", "policy:caching")
cachalot.enable(CONFIG)


def since(major: int, minor: int) -> Any:
    """Leaves a test out under an older PyTorch."""
    return unittest.skipIf((major, minor) > VERSION, f"PyTorch has this since {major}.{minor}")


def observers() -> ctypes.CDLL:
    """The library of observers.cpp."""
    return ctypes.CDLL(os.environ["CACHALOT_TEST_OBSERVERS"])


only_caching = unittest.skipUnless(CONFIG.startswith("policy:caching"), "another policy places blocks differently")


def block(size: int) -> torch.Tensor:
    """A tensor of so many bytes."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def stat(key: str) -> int:
    """One of PyTorch's statistics."""
    return torch.cuda.memory_stats()[key]


def numbers(size: int, seed: int) -> torch.Tensor:
    """So many bytes on the host, which depend on nothing but the seed."""
    return torch.randint(256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def events(device: int = 0) -> list[dict[str, Any]]:
    """The recorded events of a device, without those of snapshots."""
    return [entry for entry in torch.cuda.memory._snapshot()["device_traces"][device] if entry["action"] != "snapshot"]


class Case(unittest.TestCase):
    """Each test begins with an empty cache."""

    def setUp(self) -> None:
        torch.cuda.init()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def tearDown(self) -> None:
        torch.cuda.memory._record_memory_history(enabled=None)


class Memory(Case):
    def test_cachalot_is_the_whole_allocator(self) -> None:
        self.assertEqual(torch.cuda.memory.get_allocator_backend(), "cachalot")

    def test_contents(self) -> None:
        sent = {size: numbers(size, size) for size in (1, 1000, MIB, 3 * MIB + 1, 30 * MIB)}
        kept = {size: host.to("cuda") for size, host in sent.items()}
        self.assertEqual(len({tensor.data_ptr() for tensor in kept.values()}), len(kept))
        for size, tensor in kept.items():
            self.assertTrue(torch.equal(tensor.cpu(), sent[size]), size)

    def test_a_freed_block_serves_the_next_request(self) -> None:
        first = block(5 * MIB).data_ptr()
        self.assertEqual(block(5 * MIB).data_ptr(), first)

    def test_statistics_agree_with_a_snapshot(self) -> None:
        before = torch.cuda.memory_allocated()
        kept = [block(size) for size in (1000, 2 * MIB, 30 * MIB)]
        allocated = sum(
            piece["size"]
            for segment in torch.cuda.memory_snapshot()
            for piece in segment["blocks"]
            if piece["state"] == "active_allocated"
        )
        self.assertEqual(torch.cuda.memory_allocated(), allocated)
        self.assertEqual(torch.cuda.memory_allocated() - before, 1024 + 32 * MIB)
        del kept
        self.assertEqual(torch.cuda.memory_allocated(), before)
        torch.cuda.empty_cache()
        self.assertLess(torch.cuda.memory_reserved(), 32 * MIB)

    def test_out_of_memory(self) -> None:
        ooms = stat("num_ooms")
        with self.assertRaisesRegex(torch.OutOfMemoryError, "CUDA out of memory"):
            block(1 << 40)
        self.assertEqual(stat("num_ooms"), ooms + 1)
        self.assertEqual(numbers(MIB, 1).to("cuda").numel(), MIB)

    def test_a_fraction(self) -> None:
        torch.cuda.set_per_process_memory_fraction(0.01)
        try:
            with self.assertRaises(torch.OutOfMemoryError):
                block(torch.cuda.mem_get_info()[1] // 50)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)


class Streams(Case):
    @only_caching
    def test_a_recorded_stream_keeps_a_block(self) -> None:
        side = torch.cuda.Stream()
        tensor = block(5 * MIB)
        address = tensor.data_ptr()
        host = torch.empty(5 * MIB, dtype=torch.uint8)
        with torch.cuda.stream(side):
            host.copy_(tensor)
        tensor.record_stream(side)
        del tensor
        side.synchronize()
        torch.cuda.synchronize()
        again = block(5 * MIB)
        self.assertIn(address, {again.data_ptr(), block(5 * MIB).data_ptr()})

    @only_caching
    def test_streams_have_blocks_of_their_own(self) -> None:
        side = torch.cuda.Stream()
        address = block(5 * MIB).data_ptr()
        with torch.cuda.stream(side):
            self.assertNotEqual(block(5 * MIB).data_ptr(), address)

    def test_events(self) -> None:
        side = torch.cuda.Stream()
        done = torch.cuda.Event()
        host = numbers(MIB, 5)
        with torch.cuda.stream(side):
            tensor = host.to("cuda", non_blocking=True)
            done.record()
        torch.cuda.current_stream().wait_event(done)
        self.assertTrue(torch.equal(tensor.cpu(), host))
        done.synchronize()
        self.assertTrue(done.query())


class Histories(Case):
    def test_events_and_stacks(self) -> None:
        torch.cuda.memory._record_memory_history(max_entries=1000)
        tensor = block(5 * MIB)
        address = tensor.data_ptr()
        del tensor
        told = [entry for entry in events() if entry.get("addr") == address]
        actions = [entry["action"] for entry in told if not entry["action"].startswith("segment")]
        self.assertEqual(actions, ["alloc", "free_requested", "free_completed"])
        self.assertTrue(any(frame["name"] == "block" for frame in told[0]["frames"]) or told[0]["frames"])

    def test_a_dumped_snapshot(self) -> None:
        torch.cuda.memory._record_memory_history()
        tensor = block(5 * MIB)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "snapshot.pickle"
            torch.cuda.memory._dump_snapshot(str(file))
            dumped = pickle.loads(file.read_bytes())
        addresses = [piece["address"] for segment in dumped["segments"] for piece in segment["blocks"]]
        self.assertIn(tensor.data_ptr(), addresses)
        self.assertTrue(any(dumped["device_traces"]))

    @since(2, 14)
    def test_metadata_and_annotations(self) -> None:
        self.assertTrue(torch._C._cuda_memoryMetadataSupported())
        torch.cuda.memory._record_memory_history()
        torch._C._cuda_setMemoryMetadata("phase one")
        tensor = block(5 * MIB)
        torch._C._cuda_setMemoryMetadata("")
        torch._C._cuda_annotateMemory(tensor.data_ptr(), "weights")
        told = {entry["action"]: entry for entry in events() if entry.get("addr") == tensor.data_ptr()}
        self.assertEqual(told["alloc"]["user_metadata"], "phase one")
        self.assertEqual(told["annotate"]["user_metadata"], "weights")
        with self.assertRaisesRegex(RuntimeError, "no block starts"):
            torch._C._cuda_annotateMemory(tensor.data_ptr() + 1, "inside of a block")


class Pools(Case):
    def test_a_pool_has_segments_of_its_own(self) -> None:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            inside = block(5 * MIB)
        outside = block(5 * MIB)
        owners = {
            piece["address"]: tuple(segment["segment_pool_id"])
            for segment in torch.cuda.memory_snapshot()
            for piece in segment["blocks"]
        }
        self.assertEqual(owners[inside.data_ptr()], tuple(pool.id))
        self.assertEqual(owners[outside.data_ptr()], (0, 0))

    def test_a_graph_of_copies(self) -> None:
        source, target = numbers(MIB, 1).to("cuda"), block(MIB)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            between = torch.empty_like(source)
            between.copy_(source)
            target.copy_(between)
        source.copy_(numbers(MIB, 2))
        graph.replay()
        self.assertTrue(torch.equal(target.cpu(), numbers(MIB, 2)))

    @since(2, 13)
    def test_statistics_of_private_pools(self) -> None:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            tensor = block(5 * MIB)
        name = f"reserved_bytes_by_private_pools.{pool.id[0]}_{pool.id[1]}"
        held = sum(segment["total_size"] for segment in pool.snapshot())
        self.assertGreaterEqual(held, 5 * MIB)
        self.assertEqual(stat(f"{name}.all.current"), held)
        self.assertEqual(stat(f"{name}.large_pool.current"), held)
        self.assertEqual(stat(f"{name}.small_pool.current"), 0)
        del tensor, pool
        gc.collect()
        torch.cuda.empty_cache()
        self.assertEqual(stat(f"{name}.all.current"), 0)
        self.assertEqual(stat(f"{name}.all.peak"), held)
        torch.cuda.reset_peak_memory_stats()
        self.assertEqual(stat(f"{name}.all.peak"), 0)


class Later(Case):
    """What versions after 2.11 have added to the interface."""

    @since(2, 12)
    def test_rejections_are_counted(self) -> None:
        cachalot.configure("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.01")
        try:
            rejected, ooms = stat("num_oom_rejections"), stat("num_ooms")
            with self.assertRaisesRegex(torch.OutOfMemoryError, "preemptively rejected"):
                block(torch.cuda.mem_get_info()[1] // 50)
            self.assertEqual(stat("num_oom_rejections"), rejected + 1)
            self.assertEqual(stat("num_ooms"), ooms)
        finally:
            cachalot.configure("throw_on_cudamalloc_oom:False,per_process_memory_fraction:1.0")

    told = (ctypes.c_int64 * 4)()
    """What an observer of rejected requests writes, to the end of the process."""

    @since(2, 12)
    def test_an_observer_of_rejections(self) -> None:
        observers().observe_rejections(self.told)
        cachalot.configure("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.01")
        try:
            reserved, total = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[1]
            with self.assertRaises(torch.OutOfMemoryError):
                block(total // 50)
            self.assertEqual(list(self.told), [0, total // 50, reserved, total])
        finally:
            cachalot.configure("throw_on_cudamalloc_oom:False,per_process_memory_fraction:1.0")

    @since(2, 12)
    def test_the_stack_of_a_pointer(self) -> None:
        torch.cuda.memory._record_memory_history()
        tensor = block(5 * MIB)
        self.assertTrue(observers().has_stack(ctypes.c_void_p(tensor.data_ptr())))
        self.assertTrue(observers().has_stack(ctypes.c_void_p(tensor.data_ptr() + MIB)))
        self.assertFalse(observers().has_stack(ctypes.c_void_p(512)))

    @since(2, 13)
    @only_caching
    def test_a_storage_at_an_address(self) -> None:
        tensor = block(5 * MIB)
        base = tensor.data_ptr()
        del tensor
        at = base + MIB
        placed = block(0)
        placed.untyped_storage()._resize_with_addr_(MIB, at)
        self.assertEqual(placed.untyped_storage().data_ptr(), at)
        # Before and behind, the memory is free.
        self.assertEqual(block(MIB + 512).data_ptr() > at, True)
        with self.assertRaisesRegex(RuntimeError, "can start at"):
            block(0).untyped_storage()._resize_with_addr_(MIB, at)
        with self.assertRaises(RuntimeError):
            block(0).untyped_storage()._resize_with_addr_(MIB, 512)
        with torch.cuda.stream(torch.cuda.Stream()), self.assertRaisesRegex(RuntimeError, "another device or stream"):
            block(0).untyped_storage()._resize_with_addr_(MIB, base)
        placed.untyped_storage().resize_(0)
        self.assertEqual(block(5 * MIB).data_ptr(), base)


@unittest.skipIf("policy:stitched" not in CONFIG and "expandable_segments:True" not in CONFIG, "nothing is parked")
class Parked(Case):
    def test_contents_and_addresses(self) -> None:
        sizes = (1000, MIB, 3 * MIB + 1, 30 * MIB)
        with cachalot.Tag("weights"):
            tensors = [numbers(size, size).to("cuda") for size in sizes]
        addresses = [tensor.data_ptr() for tensor in tensors]
        free = torch.cuda.mem_get_info()[0]
        cachalot.Tag("weights").park()
        self.assertGreater(torch.cuda.mem_get_info()[0], free + 30 * MIB)
        cachalot.Tag("weights").wake()
        self.assertEqual([tensor.data_ptr() for tensor in tensors], addresses)
        for size, tensor in zip(sizes, tensors):
            self.assertTrue(torch.equal(tensor.cpu(), numbers(size, size)), size)


@since(2, 8)
class Pinned(Case):
    """After the other classes, in the order of names: pinned memory does not go back to PyTorch."""

    @classmethod
    def setUpClass(cls) -> None:
        if not cachalot.enabled(pinned=True):
            cachalot.enable(cuda=False, pinned=True)

    def test_contents(self) -> None:
        host = numbers(3 * MIB + 1, 7).pin_memory()
        self.assertTrue(host.is_pinned())
        self.assertTrue(torch.equal(host.to("cuda", non_blocking=True).cpu(), numbers(3 * MIB + 1, 7)))

    def test_statistics(self) -> None:
        torch._C._host_emptyCache()  # which completes frees that copies have delayed
        before = torch.cuda.host_memory_stats()
        kept = torch.empty(3 * MIB + 1, dtype=torch.uint8, pin_memory=True)
        after = torch.cuda.host_memory_stats()
        key = "active_bytes.current" if VERSION >= (2, 10) else "allocated_bytes.current"
        self.assertIn(after[key] - before[key], range(kept.numel(), kept.numel() + 4096))

    @since(2, 14)
    def test_history(self) -> None:
        torch.cuda.memory._record_memory_history(record_pinned_host_memory=True)
        kept = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
        freed = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
        address = freed.data_ptr()
        del freed
        snapshot = torch.cuda.memory._snapshot()
        segments = {segment["address"]: segment for segment in snapshot["host_segments"]}
        self.assertIn(kept.data_ptr(), segments)
        self.assertNotIn(address, segments)
        actions = [entry["action"] for entry in snapshot["host_traces"] if entry["addr"] == address]
        self.assertEqual(actions, ["alloc", "free_requested", "free_completed"])


if __name__ == "__main__":
    unittest.main()
