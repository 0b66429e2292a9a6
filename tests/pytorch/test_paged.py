"""The example of a paged attention (`examples/torch/paged_attention.py`): block tables over an elastic range. All but the
attention itself only copies, so that it runs on the emulated driver."""

from __future__ import annotations

import random
import sys
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "torch"))

import cachalot_gpu.torch as own  # noqa: E402
from paged_attention import TOKENS, PagedCache, Sequence, Use, attention  # noqa: E402

own.enable("policy:stitched")

LAYERS, HEADS, SIZE = 2, 2, 128
PAGE = 2 << 20


def token(number: int) -> torch.Tensor:
    """Returns keys and values with a number in them."""
    return torch.full((LAYERS, 2, HEADS, SIZE), number, dtype=torch.float16)


class Paged(unittest.TestCase):
    """Each test has a cache, whose pages have 64 blocks of 32 KiB."""

    def setUp(self) -> None:
        self.cache = PagedCache(1024, LAYERS, HEADS, SIZE)

    def check(self, sequence: Sequence, wanted: list[int]) -> None:
        """Compares a sequence with the numbers that were written, through the table."""
        self.assertEqual(sequence.tokens, len(wanted))
        for at, number in enumerate(wanted):
            found = self.cache.rows[sequence.table[at // TOKENS], at % TOKENS].cpu()
            self.assertTrue(torch.equal(found, token(number)), (at, number))

    def test_a_shared_block_is_copied_when_it_is_written(self) -> None:
        first = Sequence()
        for number in range(TOKENS + 3):
            self.cache.append(first, token(number))
        second = self.cache.fork(first)
        self.assertEqual((self.cache.use(), second.table), (Use(2, PAGE), first.table))
        self.cache.append(second, token(100))
        self.cache.append(first, token(200))
        self.assertEqual((self.cache.use().blocks, first.table[0]), (3, second.table[0]))
        begin = list(range(TOKENS + 3))
        self.check(first, [*begin, 200])
        self.check(second, [*begin, 100])

    def test_an_idle_moment_gives_memory_back_and_moves_the_rest(self) -> None:
        sequences = [Sequence() for _ in range(20)]
        for number in range(8 * TOKENS):
            for place, sequence in enumerate(sequences):
                self.cache.append(sequence, token((number + place) % 1000))
        self.assertEqual(self.cache.use(), Use(160, 3 * PAGE))
        for sequence in sequences[:15]:
            self.cache.end(sequence)
        self.cache.shrink(sequences)
        self.assertEqual(self.cache.use(), Use(40, PAGE))
        for place, sequence in enumerate(sequences[15:], 15):
            self.check(sequence, [(number + place) % 1000 for number in range(8 * TOKENS)])
        for sequence in sequences:
            self.cache.end(sequence)
        self.cache.shrink(sequences)
        self.assertEqual(self.cache.use(), Use(0, 0))

    def test_any_order_of_operations_keeps_every_token(self) -> None:
        source = random.Random(7)
        sequences: list[tuple[Sequence, list[int]]] = [(Sequence(), [])]
        for step in range(600):
            what, (sequence, wanted) = source.randrange(10), source.choice(sequences)
            if what < 6:
                for _ in range(source.randrange(1, 12)):
                    self.cache.append(sequence, token(step))
                    wanted.append(step)
            elif what < 8 and len(sequences) < 12:
                sequences.append((self.cache.fork(sequence), list(wanted)))
            elif what == 8 and len(sequences) > 1:
                self.cache.end(sequence)
                sequences = [other for other in sequences if other[0] is not sequence]
            elif what == 9:
                self.cache.shrink([sequence for sequence, _ in sequences])
        tables = [block for sequence, _ in sequences for block in sequence.table]
        self.assertEqual(sum(self.cache.users), len(tables))
        self.assertEqual(self.cache.use().blocks, len(set(tables)))
        for sequence, wanted in sequences:
            self.check(sequence, wanted)

    def test_attention_over_a_table_is_that_over_the_tokens(self) -> None:
        torch.manual_seed(3)
        tokens = torch.randn(70, LAYERS, 2, HEADS, SIZE, dtype=torch.float16, device="cuda")
        query = torch.randn(HEADS, SIZE, dtype=torch.float16, device="cuda")
        sequence, other = Sequence(), Sequence()
        for one in tokens:
            self.cache.append(other, one.neg())
            self.cache.append(sequence, one)
        keys, values = tokens[:, 1].permute(1, 2, 0, 3)
        wanted = torch.nn.functional.scaled_dot_product_attention(query.unsqueeze(1), keys, values).squeeze(1)
        self.assertTrue(torch.allclose(attention(self.cache, sequence, query, 1), wanted, atol=1e-3))


if __name__ == "__main__":
    unittest.main()
