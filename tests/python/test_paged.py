"""The example of a paged attention (`examples/torch/paged_attention.py`) on the emulated driver: blocks, tables and pages.
PyTorch's tensors are stood in for, and what they hold is noted by block."""

from __future__ import annotations

import unittest
from pathlib import Path

from children import said

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "torch"

BEGIN = f"""
import random, sys, types
import torch, cachalot_gpu.torch as own
sys.path.insert(0, {str(EXAMPLES)!r})
torch.float16 = types.SimpleNamespace(itemsize=2)
from paged_attention import TOKENS, PagedCache, Sequence, Use

PAGE = 2 << 20
noted = {{}}

class Place:
    def __init__(self, at):
        self.at = at

    def copy_(self, what):
        if isinstance(what, Place):
            for token in range(TOKENS):
                noted[self.at, token] = noted.get((what.at, token))
        else:
            noted[self.at] = what

class Tensor:
    def __init__(self, shape):
        self.shape = shape

    def view(self, *shape):
        return self if isinstance(shape[0], types.SimpleNamespace) else Tensor(shape)

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, at):
        return Place(at)

torch.as_tensor = lambda whole, device: Tensor(whole.__cuda_array_interface__["shape"])
torch.empty = lambda shape, dtype, device: Tensor(shape)
# Blocks of 32 KiB, and 64 of them in a page.
cache = PagedCache(1024, 2, 2, 128)

def read(sequence):
    return [noted[sequence.table[at // TOKENS], at % TOKENS] for at in range(sequence.tokens)]
"""


class Paged(unittest.TestCase):
    """Each program is a process."""

    def test_sequences_share_what_they_begin_with(self) -> None:
        program = """
first = Sequence()
for number in range(TOKENS + 3):
    cache.append(first, number)
second = cache.fork(first)
assert cache.use() == Use(2, PAGE) and second.table == first.table
cache.append(second, 100)
cache.append(first, 200)
assert cache.use().blocks == 3 and second.table[0] == first.table[0]
begin = list(range(TOKENS + 3))
assert (read(first), read(second)) == ([*begin, 200], [*begin, 100])
print("well")
"""
        self.assertEqual(said(BEGIN + program), "well\n")

    def test_an_idle_moment_gives_memory_back_in_any_state(self) -> None:
        program = """
source = random.Random(7)
sequences = [(Sequence(), [])]
most = 0
for step in range(3000):
    what, (sequence, wanted) = source.randrange(10), source.choice(sequences)
    if what < 6:
        for number in range(source.randrange(1, 40)):
            cache.append(sequence, (step, number))
            wanted.append((step, number))
    elif what < 8 and len(sequences) < 40:
        sequences.append((cache.fork(sequence), list(wanted)))
    elif what == 8 and len(sequences) > 1:
        cache.end(sequence)
        sequences = [other for other in sequences if other[0] is not sequence]
    else:
        before = cache.use()
        cache.shrink([sequence for sequence, _ in sequences])
        blocks = len({block for sequence, _ in sequences for block in sequence.table})
        assert cache.use() == Use(blocks, -(-blocks // 64) * PAGE), "no page without a block"
        assert cache.use().bytes <= before.bytes
    most = max(most, cache.use().bytes)
for sequence, wanted in sequences:
    assert read(sequence) == wanted
    cache.end(sequence)
assert most > 2 * PAGE and own.memory_allocated() == cache.use().bytes
cache.shrink([])
assert cache.use() == Use(0, 0) and own.memory_allocated() == 0
print("well")
"""
        self.assertEqual(said(BEGIN + program), "well\n")


if __name__ == "__main__":
    unittest.main()
