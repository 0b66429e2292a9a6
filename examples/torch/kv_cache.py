"""A KV cache that grows in place: each decoding step appends a row, and no row is ever copied.

    python examples/torch/kv_cache.py [STEPS]

Prints the memory of the cache, and what a cache of `torch.cat` would have copied.
"""

import sys

import cachalot_gpu.torch
import torch
from torch.nn.functional import scaled_dot_product_attention

HEADS, SIZE, MOST = 16, 128, 1 << 20


def main(steps: int) -> None:
    cachalot_gpu.torch.enable("expandable_segments:True")
    # Addresses for a million tokens. No row has memory yet.
    keys = cachalot_gpu.torch.ElasticTensor((MOST, HEADS, SIZE), torch.float16)
    values = cachalot_gpu.torch.ElasticTensor((MOST, HEADS, SIZE), torch.float16)
    torch.manual_seed(1)
    copied = 0
    for tokens in range(1, steps + 1):
        token = torch.randn(3, HEADS, SIZE, dtype=torch.float16, device="cuda")
        k, v = keys.resize(tokens), values.resize(tokens)
        k[-1], v[-1] = token[1], token[2]
        out = scaled_dot_product_attention(token[0].view(HEADS, 1, SIZE), k.transpose(0, 1), v.transpose(0, 1))
        copied += 2 * (tokens - 1) * HEADS * SIZE * 2
    # The cache holds what was written: the last token's attention, computed anew from a copy.
    again = scaled_dot_product_attention(token[0].view(HEADS, 1, SIZE), k.clone().transpose(0, 1), v.clone().transpose(0, 1))
    assert torch.equal(out, again), "the rows have changed"
    held = keys.committed_bytes + values.committed_bytes
    print(f"kv_cache: {steps} tokens in {held >> 20} MiB, in place; copies by torch.cat: {copied >> 20} MiB")
    # The sequence ends: all pages but one of each serve other requests at once.
    keys.resize(1), values.resize(1)
    assert keys.committed_bytes + values.committed_bytes == 2 * keys.page_bytes


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4096)
