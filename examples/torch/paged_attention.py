"""The memory of a paged attention over an elastic range, as a serving engine has it.

    python examples/torch/paged_attention.py [STEPS]

The tokens of a sequence are in blocks, which the sequence's block table names in order. Sequences that begin alike share
blocks, which are counted. Blocks that are free come first, and then the range grows by a page. A moment without work
moves the last blocks to the front, and gives the rest of the memory back.
"""

from __future__ import annotations

import heapq
import sys
from typing import NamedTuple

import cachalot_gpu.torch
import torch

TOKENS = 16
"""The tokens of a block."""


class Sequence:
    """Tokens in the blocks of a table."""

    def __init__(self) -> None:
        self.table: list[int] = []
        self.tokens = 0


class Use(NamedTuple):
    """What a cache takes."""

    blocks: int
    """Blocks with a token."""
    bytes: int
    """Bytes with memory."""


class PagedCache:
    """Blocks of keys and values of all layers, and who uses them."""

    def __init__(self, blocks: int, layers: int, heads: int, size: int) -> None:
        # The layers of a token are together: a page of 2 MiB has a few blocks, not one for each layer.
        self.range = cachalot_gpu.torch.ElasticTensor((blocks, TOKENS, layers, 2, heads, size), torch.float16)
        self.rows = self.range.resize(0)
        row = TOKENS * layers * 2 * heads * size * torch.float16.itemsize
        self.page_blocks = max(1, self.range.page_bytes // row)
        self.users = [0] * blocks
        self.free: list[int] = []
        """Blocks that have memory and no user, as a heap: the lowest is taken first, so the last pages become free."""

    def use(self) -> Use:
        """Returns what the cache takes now."""
        return Use(sum(users > 0 for users in self.users), self.range.committed_bytes)

    def take(self) -> int:
        """Takes a block for one user. The range grows if none is free.

        Raises:
            OutOfMemoryError: nothing has changed. A sequence ends or waits, or a model is parked.
        """
        if not self.free:
            before = len(self.rows)
            self.rows = self.range.resize(min(before + self.page_blocks, len(self.users)))
            self.free = list(range(before, len(self.rows)))
        block = heapq.heappop(self.free)
        self.users[block] = 1
        return block

    def leave(self, block: int) -> None:
        """Ends a use of a block."""
        self.users[block] -= 1
        if self.users[block] == 0:
            heapq.heappush(self.free, block)

    def append(self, sequence: Sequence, token: torch.Tensor) -> None:
        """Appends a token: its keys and values, of all layers."""
        at = sequence.tokens % TOKENS
        if at == 0:
            sequence.table.append(self.take())
        elif self.users[shared := sequence.table[-1]] > 1:
            # Only the last block is written, so only that one is ever copied.
            own = self.take()
            self.rows[own].copy_(self.rows[shared])
            self.leave(shared)
            sequence.table[-1] = own
        self.rows[sequence.table[-1], at].copy_(token)
        sequence.tokens += 1

    def fork(self, sequence: Sequence) -> Sequence:
        """Returns a sequence that begins with the tokens of another one. Nothing is copied."""
        new = Sequence()
        new.table, new.tokens = list(sequence.table), sequence.tokens
        for block in new.table:
            self.users[block] += 1
        return new

    def end(self, sequence: Sequence) -> None:
        """Ends a sequence."""
        for block in sequence.table:
            self.leave(block)
        sequence.table, sequence.tokens = [], 0

    def shrink(self, sequences: list[Sequence]) -> None:
        """Moves the last blocks to the front, and gives the memory after them back, after the work submitted so far.
        ``sequences`` are all that there are."""
        used = [block for block, users in enumerate(self.users) if users]
        places = {}
        for block in reversed(used[len(used) - sum(block >= len(used) for block in used) :]):
            # As many blocks are free before this place as are used after it.
            place = heapq.heappop(self.free)
            self.rows[place].copy_(self.rows[block])
            self.users[place], self.users[block] = self.users[block], 0
            places[block] = place
        for sequence in sequences:
            sequence.table = [places.get(block, block) for block in sequence.table]
        rows = min(-(-len(used) // self.page_blocks) * self.page_blocks, len(self.users))
        self.rows = self.range.resize(rows)
        self.free = list(range(len(used), rows))

    def tokens(self, sequence: Sequence) -> torch.Tensor:
        """Returns a copy of a sequence's tokens, in order: a gather by the table. A kernel for paged attention reads
        the blocks where they are."""
        table = torch.tensor(sequence.table, device=self.rows.device)
        return self.rows[table].flatten(0, 1)[: sequence.tokens]


def attention(cache: PagedCache, sequence: Sequence, query: torch.Tensor, layer: int) -> torch.Tensor:
    """Returns the attention of a query of shape (heads, size) over a sequence."""
    from torch.nn.functional import scaled_dot_product_attention

    keys, values = cache.tokens(sequence)[:, layer].transpose(0, 1).transpose(1, 2)
    return scaled_dot_product_attention(query.unsqueeze(1), keys, values).squeeze(1)


def main(steps: int) -> None:
    """Serves sequences that share a prompt, and prints what the cache takes."""
    layers, heads, size, prompt = 8, 8, 128, 200
    cachalot_gpu.torch.enable("policy:stitched")
    torch.manual_seed(1)
    cache = PagedCache(1 << 16, layers, heads, size)

    def token() -> torch.Tensor:
        return torch.randn(layers, 2, heads, size, dtype=torch.float16, device="cuda")

    first = Sequence()
    for _ in range(prompt):
        cache.append(first, token())
    sequences = [cache.fork(first) for _ in range(12)]
    cache.end(first)
    for _ in range(steps):
        for sequence in sequences:
            cache.append(sequence, token())
    query = torch.randn(heads, size, dtype=torch.float16, device="cuda")
    before = attention(cache, sequences[0], query, layers - 1)
    full = cache.use()
    alone = sum(len(sequence.table) for sequence in sequences)
    for sequence in sequences[2:]:
        cache.end(sequence)
    cache.shrink(sequences)
    assert torch.equal(attention(cache, sequences[0], query, layers - 1), before), "the tokens have changed"
    idle = cache.use()
    for sequence in sequences:
        cache.end(sequence)
    cache.shrink(sequences)
    assert cache.use() == Use(0, 0)
    print(
        f"paged_attention: {full.blocks} blocks in {full.bytes >> 20} MiB for 12 sequences, {alone} without shared ones; "
        f"{idle.blocks} in {idle.bytes >> 20} MiB after most have ended, none at the end"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
