"""How much memory there is, what is counted, and whose it is."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import unittest

import torch

import cachalot_gpu.torch
from case import MIB, NATIVE, Case, block, only_cachalot, settings, stat


class Statistics(Case):
    """What is counted."""

    def test_a_small_tensor(self) -> None:
        before = torch.cuda.memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        tensor = torch.empty(256, device="cuda")
        self.assertEqual(stat("active_bytes.all.current"), before["active_bytes.all.current"] + 1024)
        self.assertEqual(stat("active_bytes.all.freed"), 0)
        del tensor
        torch.cuda.empty_cache()
        self.assertEqual(stat("active_bytes.all.current"), before["active_bytes.all.current"])
        self.assertEqual(stat("active_bytes.all.freed"), 1024)

    def test_peaks(self) -> None:
        start = torch.cuda.memory_allocated()
        tensor = block(40 * MIB)
        del tensor
        self.assertEqual(torch.cuda.max_memory_allocated(), start + 40 * MIB)
        torch.cuda.reset_peak_memory_stats()
        self.assertEqual(torch.cuda.max_memory_allocated(), start)
        self.assertGreaterEqual(torch.cuda.max_memory_reserved(), 40 * MIB)

    def test_allocations_that_are_no_tensors(self) -> None:
        start = torch.cuda.memory_allocated()
        address = torch.cuda.caching_allocator_alloc(1)
        self.assertGreater(torch.cuda.memory_allocated(), start)
        torch.cuda.caching_allocator_delete(address)
        self.assertEqual(torch.cuda.memory_allocated(), start)

    def test_every_form_of_a_device(self) -> None:
        tensor = block(MIB)
        figures = {torch.cuda.memory_allocated(name) for name in (None, 0, "cuda", "cuda:0", torch.device("cuda", 0))}
        self.assertEqual(figures, {torch.cuda.memory_allocated()})
        self.assertGreaterEqual(figures.pop(), tensor.nbytes)
        if not NATIVE:
            own, theirs = cachalot_gpu.torch.memory_stats("cuda:0"), torch.cuda.memory_stats()
            # cachalot has figures of later versions of PyTorch, too.
            self.assertEqual({key: own[key] for key in theirs}, dict(theirs))

    def test_the_table(self) -> None:
        tensor = block(30 * MIB)
        table = torch.cuda.memory_summary()
        self.assertIn("PyTorch CUDA memory summary, device ID 0", table)
        self.assertIn("GPU reserved memory", table)
        self.assertNotIn("from large pool", torch.cuda.memory_summary(abbreviated=True))
        self.assertIn(f"{torch.cuda.memory_allocated() // 1024:6d} KiB", table)
        del tensor

    @only_cachalot
    def test_the_same_keys_as_pytorchs(self) -> None:
        program = "import json, torch; torch.zeros(1).cuda(); print(json.dumps(list(torch.cuda.memory_stats())))"
        theirs = json.loads(
            subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        )
        self.assertEqual([key for key in theirs if key not in torch.cuda.memory_stats()], [])

    def test_determinism(self) -> None:
        rounds = []
        for _ in range(3):
            kept = [block(size * 100_000) for size in range(1, 60)]
            del kept[::3]
            kept += [block(size * 70_000) for size in range(1, 60)]
            rounds.append([tensor.data_ptr() for tensor in kept])
            del kept
        # The first one obtains what the others find in the cache.
        self.assertEqual(rounds[1], rounds[2])


class OutOfMemory(Case):
    """When there is no more."""

    def test_what_it_says(self) -> None:
        with self.assertRaisesRegex(
            torch.OutOfMemoryError, "Tried to allocate 800000000.00 GiB. GPU 0 has a total capacity of"
        ):
            block(800_000_000 << 30)
        with self.assertRaisesRegex(torch.OutOfMemoryError, "Tried to allocate more than 1EB memory"):
            block(8_000_000_000 << 30)
        self.assertEqual((torch.ones(10, device="cuda") * 2).sum().item(), 20)

    def test_the_first_half_succeeds_after_the_second_failed(self) -> None:
        size = int(torch.cuda.mem_get_info()[0] * 0.51)
        first = block(size)
        with self.assertRaises(torch.OutOfMemoryError):
            block(size)
        del first
        self.assertEqual(block(size).nbytes, size)

    def test_cached_memory_is_given_back_for_a_large_request(self) -> None:
        free = torch.cuda.mem_get_info()[0]
        kept = [block(free // 32) for _ in range(27)]
        del kept
        before = stat("num_alloc_retries")
        self.assertEqual(block(int(free * 0.7)).numel(), int(free * 0.7))
        self.assertGreaterEqual(stat("num_alloc_retries"), before + 1)

    def test_a_fraction_of_the_memory(self) -> None:
        with self.assertRaises(TypeError):
            torch.cuda.set_per_process_memory_fraction(1)
        for wrong in (-0.1, 2.0):
            with self.assertRaises(ValueError):
                torch.cuda.set_per_process_memory_fraction(wrong)
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(0.5)
        try:
            small = block(1)
            tensor = block(int(total * 0.499) - torch.cuda.memory_reserved())
            del tensor
            torch.cuda.empty_cache()
            with self.assertRaises(torch.OutOfMemoryError):
                block(int(total * 0.5))
            del small
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def test_a_fraction_is_what_it_was_set_to(self) -> None:
        for fraction in (0.0, random.random(), 1.0):
            torch.cuda.set_per_process_memory_fraction(fraction)
            self.assertAlmostEqual(torch.cuda.get_per_process_memory_fraction(), fraction, 6)

    @only_cachalot
    def test_rejected_before_anything_is_given_back(self) -> None:
        total = torch.cuda.mem_get_info()[1]
        before = cachalot_gpu.torch.memory_stats()["num_oom_rejections"]
        rejecting = settings("per_process_memory_fraction:0.005,throw_on_cudamalloc_oom:True")
        with rejecting, self.assertRaises(torch.OutOfMemoryError):
            block(int(total * 0.005) + MIB)
        torch.cuda.set_per_process_memory_fraction(1.0)
        self.assertGreater(cachalot_gpu.torch.memory_stats()["num_oom_rejections"], before)

    @only_cachalot
    def test_with_and_without_a_size_that_is_not_split(self) -> None:
        for text in ("", "max_split_size_mb:1024"):
            with self.subTest(text), settings(text), self.assertRaises(torch.OutOfMemoryError):
                block(1024 << 40)


class Contents(Case):
    """Blocks that are in use are nobody else's."""

    def test_a_random_program(self) -> None:
        choose = random.Random(123)
        held: list[tuple[torch.Tensor, int]] = []
        used = 0
        for step in range(10_000):
            action = choose.choices(["take", "give", "empty"], [1, 1, 0.1])[0]
            size = choose.randrange(2 * MIB, 20 * MIB)
            if action == "take" and used + size <= 10 << 30:
                held.append((torch.full((size // 4,), step, dtype=torch.int32, device="cuda"), step))
                used += size // 4 * 4
            elif action == "give" and held:
                tensor, value = held.pop(choose.randrange(len(held)))
                used -= tensor.nbytes
                self.assertEqual([tensor.min().item(), tensor.max().item()], [value, value], step)
            elif action == "empty":
                torch.cuda.empty_cache()

    def test_threads(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        def work(seed: int) -> bool:
            choose = random.Random(seed)
            right = True
            with torch.cuda.stream(torch.cuda.Stream()):
                for step in range(300):
                    tensors = [
                        torch.full((choose.randrange(1, 200_000),), step * 8 + n, device="cuda") for n in range(4)
                    ]
                    right &= all(bool((tensor == step * 8 + n).all()) for n, tensor in enumerate(tensors))
            return right

        with ThreadPoolExecutor(8) as pool:
            self.assertEqual(list(pool.map(work, range(8))), [True] * 8)


if __name__ == "__main__":
    unittest.main(verbosity=2)
