"""The library as PyTorch calls it: through function pointers, from several threads."""

from __future__ import annotations

import builtins
import ctypes
import json
import os
import pickle
import random
import tempfile
import threading
import types
import unittest
import warnings
from pathlib import Path

import torch  # the stand-in

import cachalot_gpu
import cachalot_gpu.torch

MIB = 1 << 20


def setUpModule() -> None:
    """The plug-in in its place. The rest of this file is one process."""
    with tempfile.TemporaryDirectory() as cache, warnings.catch_warnings():
        # The stand-in has no headers; test_shim.py is about that.
        warnings.simplefilter("ignore")
        os.environ["CACHALOT_CACHE"] = cache
        cachalot_gpu.torch.enable("policy:caching", patch=True)
    torch.cuda.init()


def plugin() -> torch._C._CUDAPluggableAllocator:
    """What PyTorch was given."""
    assert torch._C.State.plugin
    return torch._C.State.plugin


def figures(device: int = 0) -> list[int]:
    """Blocks held, their bytes, and bytes held from the driver."""
    stats = torch.cuda.memory_stats(device)
    return [stats[f"{key}.all.current"] for key in ("allocation", "allocated_bytes", "reserved_bytes")]


def of_group(group: str) -> dict[str, int]:
    """The own statistics of a group."""
    stats = cachalot_gpu.torch.statistics().items()
    return {key.partition(".")[2]: value for key, value in stats if key.startswith(f"{group}.")}


class Functions(unittest.TestCase):
    """Memory that is taken and given back."""

    def tearDown(self) -> None:
        plugin().hooks["set_reset_fn"]()
        for device in (0, 1):
            self.assertEqual(figures(device), [0, 0, 0])

    def test_a_block(self) -> None:
        block = plugin().alloc(1000, 0, None)
        self.assertEqual(block % 512, 0)
        self.assertEqual(figures(), [1, 1024, 2 * MIB])
        plugin().free(block, 1000, 0, None)
        self.assertEqual(figures(), [0, 0, 2 * MIB])
        self.assertEqual(plugin().alloc(1024, 0, None), block)
        plugin().free(block, 1024, 0, None)

    def test_the_use_by_another_stream(self) -> None:
        block = plugin().alloc(1000, 0, None)
        storage = types.SimpleNamespace(data_ptr=lambda: block)
        tensor = types.SimpleNamespace(device=torch.device("cuda", 0), untyped_storage=lambda: storage)
        cachalot_gpu.torch.record_use(tensor)
        cachalot_gpu.torch.record_use(tensor, types.SimpleNamespace(cuda_stream=0))
        self.assertEqual(cachalot_gpu.torch.advise(tensor, "hot"), 0)
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "`spill` is not set"):
            cachalot_gpu.torch.advise(tensor, "cold")
        self.assertRaises(ValueError, cachalot_gpu.torch.advise, tensor, "lukewarm")
        plugin().free(block, 1000, 0, None)
        self.assertRaises(cachalot_gpu.CachalotError, cachalot_gpu.torch.record_use, tensor)
        self.assertRaises(cachalot_gpu.CachalotError, cachalot_gpu.torch.advise, tensor, "hot")

    def test_an_address_is_explained(self) -> None:
        block = plugin().alloc(1000, 0, None)
        text = cachalot_gpu.torch.explain(block + 8)
        self.assertIn(f"8 bytes into the block of 1000 bytes at {block:#x}, which was allocated on stream 0x0", text)
        self.assertIn("The program holds the block.", text)
        plugin().free(block, 1000, 0, None)
        self.assertRaises(cachalot_gpu.CachalotError, cachalot_gpu.torch.explain, block)

    def test_nothing(self) -> None:
        self.assertIsNone(plugin().alloc(0, 0, None))
        plugin().free(None, 0, 0, None)

    def test_two_devices(self) -> None:
        blocks = [plugin().alloc(3 * MIB, device, None) for device in (0, 1)]
        self.assertEqual([figures(device) for device in (0, 1)], [[1, 3 * MIB, 20 * MIB]] * 2)
        self.assertEqual(cachalot_gpu.torch.memory_reserved("cuda:1"), 20 * MIB)
        self.assertEqual(cachalot_gpu.torch.memory_reserved(torch.device("cuda", 1)), 20 * MIB)
        for device, block in enumerate(blocks):
            plugin().free(block, 3 * MIB, device, None)

    def test_threads(self) -> None:
        def work(seed: int) -> None:
            choose, held = random.Random(seed), []
            for _ in range(2000):
                if held and choose.random() < 0.5:
                    plugin().free(*held.pop(choose.randrange(len(held))), seed % 2, None)
                else:
                    size = choose.randrange(1, 200_000)
                    held.append((plugin().alloc(size, seed % 2, None), size))
            for block, size in held:
                plugin().free(block, size, seed % 2, None)
            ended.append(seed)

        ended: list[int] = []
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(ended), list(range(8)))
        self.assertGreater(torch.cuda.memory_stats(0)["allocation.all.allocated"], 3000)

    def test_hooks(self) -> None:
        block = plugin().alloc(3 * MIB, 0, None)
        size = ctypes.c_size_t()
        self.assertEqual(plugin().hooks["set_base_alloc_fn"](block + 100, ctypes.byref(size)), block)
        self.assertEqual(size.value, 20 * MIB)
        plugin().hooks["set_record_stream_fn"](block, 2)  # the calling thread's own stream
        plugin().free(block, 3 * MIB, 0, None)
        self.assertIn("set_begin_allocate_to_pool", plugin().hooks)

    def test_a_pool(self) -> None:
        library = ctypes.CDLL(cachalot_gpu.library_path())
        pool = torch._C.Pair(0, 7)
        begin = library.cachalot_torch_begin_allocate_to_pool
        begin.argtypes = [ctypes.c_int, torch._C.Pair, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self.assertEqual(begin(0, pool, None, None, None), 0)
        block = plugin().alloc(1000, 0, None)
        plugin().hooks["set_end_allocate_to_pool_fn"](0, pool)
        other = plugin().alloc(1000, 0, None)
        self.assertEqual([len(cachalot_gpu.torch.memory_snapshot(name)) for name in [(0, 7), (0, 0), None]], [1, 2, 2])
        for piece in (block, other):
            plugin().free(piece, 1000, 0, None)
        plugin().hooks["set_release_pool"](0, pool)

    def test_out_of_memory(self) -> None:
        # What the shim is given throws, which ctypes cannot take: this is what it calls.
        library = ctypes.CDLL(cachalot_gpu.library_path())
        library.cachalot_last_error.restype = ctypes.c_char_p
        library.cachalot_torch_malloc.restype = ctypes.c_void_p
        before = torch.cuda.memory_stats(0)["num_ooms"]
        self.assertIsNone(library.cachalot_torch_malloc(ctypes.c_size_t(1 << 45), 0, None))
        text = library.cachalot_last_error().decode()
        self.assertRegex(
            text,
            r"^CUDA out of memory\. Tried to allocate 32768\.00 GiB\. GPU 0 has a total capacity of 1024\.00 MiB of",
        )
        self.assertEqual(torch.cuda.memory_stats(0)["num_ooms"], before + 1)

    def test_a_fraction(self) -> None:
        cachalot_gpu.torch.set_per_process_memory_fraction(0.25, 0)
        self.assertEqual(cachalot_gpu.torch.get_per_process_memory_fraction("cuda:0"), 0.25)
        self.assertEqual(torch._C._cuda_getMemoryFraction(1), 1.0)
        library = ctypes.CDLL(cachalot_gpu.library_path())
        library.cachalot_torch_malloc.restype = ctypes.c_void_p
        self.assertIsNone(library.cachalot_torch_malloc(ctypes.c_size_t(300 * MIB), 0, None))
        torch._C._cuda_setMemoryFraction(1.0, 0)
        block = library.cachalot_torch_malloc(ctypes.c_size_t(300 * MIB), 0, None)
        plugin().free(block, 300 * MIB, 0, None)
        for wrong, error in [(1, TypeError), (-0.1, ValueError), (1.5, ValueError)]:
            self.assertRaises(error, cachalot_gpu.torch.set_per_process_memory_fraction, wrong)


class Figures(unittest.TestCase):
    """What is said about it, in PyTorch's words."""

    def setUp(self) -> None:
        self.block = plugin().alloc(5 * MIB, 0, None)

    def tearDown(self) -> None:
        plugin().free(self.block, 5 * MIB, 0, None)
        cachalot_gpu.torch.empty_cache()

    def test_every_key_of_pytorch(self) -> None:
        arrays = "allocation segment active inactive_split requested_bytes "
        arrays += "allocated_bytes reserved_bytes active_bytes inactive_split_bytes"
        counters = ("current", "peak", "allocated", "freed")
        wanted = {
            f"{name}.{pool}.{part}"
            for name in arrays.split()
            for pool in ("all", "small_pool", "large_pool")
            for part in counters
        }
        wanted |= {f"{name}.{part}" for name in ("oversize_allocations", "oversize_segments") for part in counters}
        wanted |= {
            "num_alloc_retries",
            "num_ooms",
            "num_sync_all_streams",
            "num_device_alloc",
            "num_device_free",
            "max_split_size",
        }
        stats = cachalot_gpu.torch.memory_stats()
        self.assertLessEqual(wanted, set(stats))
        self.assertEqual(list(stats), sorted(stats))
        self.assertEqual(stats, torch.cuda.memory_stats())
        # The statistics that PyTorch does not have stay out.
        self.assertFalse(set(stats) & set(cachalot_gpu.torch.statistics()))

    def test_the_own_ones(self) -> None:
        figures = cachalot_gpu.torch.statistics()
        self.assertLessEqual({"pages.moved_bytes", "reclaim.looks", "tune.switches", "planned.served"}, set(figures))
        self.assertEqual({key.partition(".")[0] for key in figures}, {"device", "pages", "planned", "reclaim", "tune"})
        self.assertEqual(figures["device.leaked_bytes"], 0)

    def test_the_usual_ones(self) -> None:
        self.assertEqual(
            [cachalot_gpu.torch.memory_allocated(), cachalot_gpu.torch.memory_reserved()], [5 * MIB, 20 * MIB]
        )
        other = plugin().alloc(30 * MIB, 0, None)
        plugin().free(other, 30 * MIB, 0, None)
        self.assertEqual(
            [cachalot_gpu.torch.max_memory_allocated(), cachalot_gpu.torch.max_memory_reserved()], [35 * MIB, 50 * MIB]
        )
        cachalot_gpu.torch.reset_peak_memory_stats()
        self.assertEqual(cachalot_gpu.torch.max_memory_allocated(), 5 * MIB)
        cachalot_gpu.torch.reset_accumulated_memory_stats()
        self.assertEqual(cachalot_gpu.torch.memory_stats()["allocated_bytes.all.freed"], 0)

    def test_metrics(self) -> None:
        lines = cachalot_gpu.torch.metrics().splitlines()
        self.assertEqual(lines[-1], "# EOF")
        for name, value in [
            ("allocated_bytes", cachalot_gpu.torch.memory_allocated()),
            ("reserved_bytes", cachalot_gpu.torch.memory_reserved()),
            ("peak_reserved_bytes", cachalot_gpu.torch.max_memory_reserved()),
        ]:
            self.assertIn(f'cachalot_{name}{{device="0"}} {value}', lines)
        self.assertIn(f'cachalot_build_info{{version="{cachalot_gpu.__version__}"}} 1', lines)
        info = next(line for line in lines if line.startswith('cachalot_device_info{device="0",'))
        self.assertRegex(info, r',uuid="[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"\} 1$')

    def test_the_pages(self) -> None:
        kinds = ("reserve", "unreserve", "create", "destroy", "map", "set_access", "unmap", "export_fd")
        wanted = {f"{kind}.{part}" for kind in kinds for part in ("calls", "us")}
        wanted |= {f"{name}_bytes" for name in "mapped spare stale parked pinned moved consolidated".split()}
        wanted |= {"stalls", "longest_stall_us"}
        stats = of_group("pages")
        self.assertLessEqual(wanted, set(stats))
        # Cached segments are no pages.
        self.assertEqual(set(stats.values()), {0})

    def test_what_was_given_back(self) -> None:
        stats = of_group("reclaim")
        self.assertEqual(set(stats.values()), {0})
        wanted = {"given_back_bytes", "obtained_again_bytes", "driver_us", "needed_soon_bytes", "caution"}
        self.assertLessEqual(wanted, set(stats))

    def test_what_tunes_itself(self) -> None:
        self.assertEqual(cachalot_gpu.torch.tuning(), ("off", False))
        self.assertLessEqual({"switches", "held", "before_bytes", "after_bytes"}, set(of_group("tune")))
        cachalot_gpu.torch.end_iteration()
        self.assertFalse(cachalot_gpu.torch.maintain(max_us=10))

    def test_the_table(self) -> None:
        self.assertEqual(cachalot_gpu.torch.memory_summary(abbreviated=True), f"{5 * MIB} B on 0, True")

    def test_what_remains(self) -> None:
        memory = cachalot_gpu.torch.remaining_memory()
        self.assertEqual((memory.block_bytes, memory.cached_bytes), (5 * MIB, 15 * MIB))
        self.assertEqual(memory.used_bytes + memory.spilled_bytes, sum(memory[1:7]))

    def test_the_names_are_few_and_hide_no_builtin(self) -> None:
        own = cachalot_gpu.torch
        self.assertEqual(own.__all__, sorted(own.__all__, key=lambda name: (name.islower(), name)))
        self.assertFalse(set(own.__all__) & set(dir(builtins)))
        for name in own.__all__:
            self.assertTrue((getattr(own, name).__doc__ or "").strip(), name)
            self.assertRegex(name, r"^[A-Z][A-Za-z]+$|^[a-z][a-z_]+$")

    def test_a_wrong_device(self) -> None:
        self.assertRaises(ValueError, cachalot_gpu.torch.memory_allocated, "cpu")
        self.assertRaises(cachalot_gpu.CachalotError, cachalot_gpu.torch.memory_allocated, 5)

    def test_a_snapshot(self) -> None:
        (segment,) = cachalot_gpu.torch.memory_snapshot()
        self.assertEqual(
            [segment["total_size"], segment["allocated_size"], segment["segment_type"]], [20 * MIB, 5 * MIB, "large"]
        )
        self.assertEqual([piece["state"] for piece in segment["blocks"]], ["active_allocated", "inactive"])
        self.assertEqual(segment["segment_pool_id"], (0, 0))
        self.assertEqual(segment["blocks"][0]["address"], self.block)

    def test_the_history(self) -> None:
        torch._C._cuda_record_memory_history("all", "all", "python", 1000, False, False, False, [])
        self.assertTrue(torch._C._cuda_isHistoryEnabled())
        block = plugin().alloc(6 * MIB, 0, None)
        plugin().free(block, 6 * MIB, 0, None)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "snapshot.pickle"
            cachalot_gpu.torch.dump_snapshot(file)
            snapshot = pickle.loads(file.read_bytes())
        events = snapshot["device_traces"][0]
        self.assertEqual([event["action"] for event in events], ["alloc", "free_requested", "free_completed"])
        self.assertEqual([event["size"] for event in events], [6 * MIB] * 3)
        self.assertIn("test_the_history", " ".join(frame["name"] for frame in events[0]["frames"]))
        json.dumps(torch._C._cuda_memorySnapshot(None))
        cachalot_gpu.torch.record_memory_history(None)
        block = plugin().alloc(6 * MIB, 0, None)
        plugin().free(block, 6 * MIB, 0, None)
        self.assertEqual(torch._C._cuda_memorySnapshot((0, 0, True))["device_traces"][0], [])
        # The flight recorder goes on, without stacks.
        with tempfile.TemporaryDirectory() as folder:
            cachalot_gpu.torch.dump_snapshot(f"{folder}/snapshot.json")
            snapshot = json.loads(Path(folder, "snapshot.json").read_text())
        events = snapshot["device_traces"][0]
        self.assertEqual([event["action"] for event in events], ["alloc", "free_requested", "free_completed"])
        self.assertEqual([event["frames"] for event in events], [[]] * 3)
        self.assertEqual(snapshot["allocator_settings"]["trace_alloc_max_entries"], 131_072)
        self.assertRaises(ValueError, cachalot_gpu.torch.record_memory_history, "everything")


if __name__ == "__main__":
    unittest.main()
