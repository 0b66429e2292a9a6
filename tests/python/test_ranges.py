"""Elastic tensors: rows that grow and shrink in place, on the emulated driver. PyTorch's tensors are stood in for."""

from __future__ import annotations

import unittest

from children import said

BEGIN = """
import gc, types
import torch, cachalot_gpu.torch as own

MIB = 1 << 20

class Tensor:
    def __init__(self, whole, shape):
        self.whole, self.shape = whole, shape
        self.address = whole.__cuda_array_interface__["data"][0] if whole else None

    def view(self, *shape):
        return self if isinstance(shape[0], types.SimpleNamespace) else Tensor(self.whole, shape)

torch.get_default_dtype = lambda: half
half = types.SimpleNamespace(itemsize=2)
torch.as_tensor = lambda whole, device: Tensor(whole, whole.__cuda_array_interface__["shape"])
torch.empty = lambda shape, dtype, device: Tensor(None, shape)

def used():
    return own.memory_allocated() // MIB
"""


class Ranges(unittest.TestCase):
    """Each program is a process."""

    def test_rows_stay_in_place(self) -> None:
        program = """
cache = own.ElasticTensor((1 << 20, 8, 128), half)   # 2 KiB a row
assert (cache.rows, cache.capacity, cache.committed_bytes, cache.page_bytes) == (0, 1 << 20, 0, 2 * MIB)
assert cache.tensor().shape == (0, 8, 128) and used() == 0
few = cache.resize(100)
assert few.shape == (100, 8, 128) and cache.committed_bytes == 2 * MIB and used() == 2
more = cache.resize(5000)
assert more.address == few.address and cache.committed_bytes == 10 * MIB and used() == 10
assert cache.tensor(7).shape == (7, 8, 128) and cache.rows == 5000
fewer = cache.resize(1024)
assert fewer.address == few.address and cache.committed_bytes == 2 * MIB and used() == 2
assert cache.resize(0).shape == (0, 8, 128) and used() == 0
print("well")
"""
        self.assertEqual(said(BEGIN + program), "well\n")

    def test_the_last_reference_gives_everything_back(self) -> None:
        program = """
cache = own.ElasticTensor((1 << 20, 1024), half)
rows = cache.resize(4096)
del cache; gc.collect()
assert used() == 8, "a tensor keeps the rows"
del rows; gc.collect()
assert used() == 0
cache = own.ElasticTensor((1 << 20, 1024), half)
cache.resize(4096)
cache.release()
cache.release()
assert (used(), cache.rows, cache.committed_bytes) == (0, 0, 0)
try:
    cache.resize(1)
except ValueError as error:
    print(error)
"""
        self.assertEqual(said(BEGIN + program), "the elastic tensor is released\n")

    def test_mistakes_change_nothing(self) -> None:
        program = """
def refused(act, *arguments):
    try:
        act(*arguments)
    except ValueError as error:
        print(error)

refused(own.ElasticTensor, (0, 8))
refused(own.ElasticTensor, (8, 0))
cache = own.ElasticTensor((1 << 24, 1024), half)
cache.resize(1024)
refused(cache.resize, -1)
refused(cache.resize, (1 << 24) + 1)
refused(cache.tensor, 1025)
import cachalot_gpu
try:
    cache.resize(1 << 24)   # 32 GiB
except cachalot_gpu.OutOfMemoryError:
    print("out of memory")
assert (cache.rows, cache.committed_bytes, used()) == (1024, 2 * MIB, 2)
"""
        wanted = (
            "an elastic tensor needs at least one row, and no length of 0: (0, 8)\n"
            "an elastic tensor needs at least one row, and no length of 0: (8, 0)\n"
            "-1 rows: an elastic tensor of 16777216 has 0 to 16777216\n"
            "16777217 rows: an elastic tensor of 16777216 has 0 to 16777216\n"
            "1025 rows: the elastic tensor has 1024 now\n"
            "out of memory\n"
        )
        self.assertEqual(said(BEGIN + program), wanted)


if __name__ == "__main__":
    unittest.main()
