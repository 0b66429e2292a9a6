"""``cachalot_gpu.torch.MemPool()``: PyTorch's allocator stays, and a ``MemPool`` of it takes its segments from cachalot.

python test_pool.py
"""

from __future__ import annotations

import gc
import threading
import unittest

import torch

import cachalot_gpu
import cachalot_gpu.torch

MIB = 1 << 20


def block(size: int) -> torch.Tensor:
    """A tensor of so many bytes."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")


class Pools(unittest.TestCase):
    """Pools that are made and go."""

    def setUp(self) -> None:
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def test_segments_come_from_cachalot_and_go_back(self) -> None:
        pool = cachalot_gpu.torch.MemPool()
        before = cachalot_gpu.torch.memory_allocated()
        self.assertEqual(pool.use_count(), 1)
        with torch.cuda.use_mem_pool(pool):
            self.assertEqual(pool.use_count(), 2)
            kept = [block(MIB)]
            self.assertEqual(len(pool.snapshot()), 1)
            kept.append(block(MIB))
            self.assertEqual(len(pool.snapshot()), 1)
            kept.append(block(MIB))
            self.assertEqual(len(pool.snapshot()), 2)
        self.assertEqual(pool.use_count(), 1)
        self.assertEqual(cachalot_gpu.torch.memory_allocated() - before, 4 * MIB)
        outside = block(MIB)
        self.assertEqual(len(pool.snapshot()), 2)
        del kept, pool
        gc.collect()
        torch.cuda.empty_cache()
        self.assertEqual(cachalot_gpu.torch.memory_allocated(), before)
        del outside

    def test_a_tensor_outlives_its_pool(self) -> None:
        pool = cachalot_gpu.torch.MemPool()
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.full((1000,), 3.0, device="cuda")
        del pool
        gc.collect()
        self.assertEqual(tensor.sum().item(), 3000)

    def test_out_of_memory_is_pytorchs(self) -> None:
        pool = cachalot_gpu.torch.MemPool()
        with torch.cuda.use_mem_pool(pool), self.assertRaises(torch.OutOfMemoryError):
            block(1 << 45)
        with torch.cuda.use_mem_pool(pool):
            self.assertEqual(torch.ones(10, device="cuda").sum().item(), 10)

    def test_a_pool_that_helps_out(self) -> None:
        pool = cachalot_gpu.torch.MemPool(use_on_oom=True)
        with torch.cuda.use_mem_pool(pool):
            tensor = block(40 * MIB)
        address = tensor.data_ptr()
        del tensor
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / torch.cuda.mem_get_info()[1])
        try:
            self.assertEqual(block(30 * MIB).data_ptr(), address)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def test_a_pool_without_splits(self) -> None:
        pool = cachalot_gpu.torch.MemPool(no_split=True)
        with torch.cuda.use_mem_pool(pool):
            kept = [block(4 * MIB) for _ in range(2)]
        self.assertEqual([len(segment["blocks"]) for segment in pool.snapshot()], [1, 1])
        del kept

    def test_only_the_own_thread_is_led_into_it(self) -> None:
        pool = cachalot_gpu.torch.MemPool()
        before = cachalot_gpu.torch.memory_allocated()
        kept: list[torch.Tensor] = []
        with torch.cuda.use_mem_pool(pool):
            thread = threading.Thread(target=lambda: kept.append(block(2 * MIB)))
            thread.start()
            thread.join()
        self.assertEqual(cachalot_gpu.torch.memory_allocated(), before)

    def test_it_cannot_be_enabled_any_more(self) -> None:
        cachalot_gpu.torch.MemPool()
        with self.assertRaises(cachalot_gpu.UnavailableError):
            cachalot_gpu.torch.enable()


if __name__ == "__main__":
    unittest.main(verbosity=2)
