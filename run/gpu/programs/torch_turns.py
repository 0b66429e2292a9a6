"""A server with PyTorch and a CUDA graph: holds weights, and answers each line of the standard input with a digest.

usage: torch_turns.py MIB
"""

from __future__ import annotations

import hashlib
import sys

import torch

WIDTH = 4096


def main() -> None:
    """Answers until the input ends."""
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    torch.manual_seed(5)
    layers = max(mib * 2**20 // (WIDTH * WIDTH * 2), 1)
    weights = [torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.float16) / 64 for _ in range(layers)]
    value = torch.randn(8, WIDTH, device="cuda", dtype=torch.float16)

    def step() -> None:
        out = value
        for weight in weights:
            out = torch.tanh(out @ weight)
        value.copy_(out)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    torch.cuda.synchronize()
    print("ready", flush=True)
    for _ in sys.stdin:
        # Eager work beside the graph, with its own memory.
        weights[0].add_(torch.full_like(weights[0], 2**-10))
        graph.replay()
        print(hashlib.sha256(value.cpu().numpy().tobytes()).hexdigest()[:16], flush=True)


if __name__ == "__main__":
    main()
