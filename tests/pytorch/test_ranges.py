"""Elastic tensors on a GPU: rows keep addresses and contents while the tensor grows and shrinks."""

from __future__ import annotations

import gc
import os
import unittest

import torch

import cachalot_gpu
import cachalot_gpu.torch as own

if os.environ.get("CACHALOT_TEST") != "native":
    own.enable()

MIB = 1 << 20


class Ranges(unittest.TestCase):
    """Without ``enable()`` (``CACHALOT_TEST=native``) the rows lie beside PyTorch's own memory."""

    def test_a_cache_grows_in_place(self) -> None:
        cache = own.ElasticTensor((1 << 20, 8, 128), torch.float16)
        keys = cache.resize(1000)
        address = keys.data_ptr()
        keys.copy_(torch.arange(1000, device="cuda").view(-1, 1, 1).expand(keys.shape))
        for rows in [5000, 40_000, 3000, 100_000]:
            keys = cache.resize(rows)
            self.assertEqual((keys.data_ptr(), tuple(keys.shape)), (address, (rows, 8, 128)))
            kept = keys[:1000, 3, 77].float()
            self.assertTrue(torch.equal(kept, torch.arange(1000, device="cuda").half().float()), rows)
            keys[1000:] = rows % 7
            self.assertEqual(float(keys[rows - 1].sum()), rows % 7 * 8 * 128)
        self.assertEqual(cache.committed_bytes, 100_000 * 2048 // (2 * MIB) * 2 * MIB + 2 * MIB)

    def test_types_and_operations(self) -> None:
        for dtype in [torch.bfloat16, torch.float32, torch.int8, torch.bool]:
            rows = own.ElasticTensor((1 << 16, 64), dtype).resize(4096)
            self.assertEqual((rows.dtype, rows.is_contiguous()), (dtype, True))
            rows.fill_(1)
            self.assertEqual(int(rows.float().sum()), 4096 * 64)

    def test_a_graph_uses_rows_that_grow(self) -> None:
        cache = own.ElasticTensor((1 << 20, 256), torch.float32)
        rows = cache.resize(2048)
        rows.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            rows += 1
        more = cache.resize(1 << 18)
        more[2048:] = 5
        for _ in range(3):
            graph.replay()
        self.assertEqual((float(more[2047, 0]), float(more[2048, 0])), (3.0, 5.0))

    def test_the_memory_comes_back(self) -> None:
        before = own.memory_allocated()
        cache = own.ElasticTensor((1 << 30, 256), torch.float32)
        rows = cache.resize(1 << 18)
        self.assertEqual(own.memory_allocated() - before, 256 * MIB)
        with self.assertRaises(cachalot_gpu.OutOfMemoryError):
            cache.resize(1 << 30)
        self.assertEqual(own.memory_allocated() - before, 256 * MIB)
        del cache, rows
        gc.collect()
        self.assertEqual(own.memory_allocated(), before)


if __name__ == "__main__":
    unittest.main()
