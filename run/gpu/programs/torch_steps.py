"""Trains a transformer with PyTorch, prints a digest of the weights, and steps a second to the errors' file.

`eager`: operator by operator. `compile`: by torch.compile. `graph`: a captured graph is replayed.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch


def digest(model: torch.nn.Module) -> str:
    """Returns a digest of the bytes of all weights."""
    found = hashlib.sha256()
    for weight in model.parameters():
        found.update(weight.detach().float().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def main() -> None:
    """Trains and prints."""
    way = sys.argv[1]
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True)
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=way == "graph")
    batches = [torch.randn(8, length, 512, device="cuda") for length in ((128,) if way == "graph" else (96, 128, 160))]
    forward = torch.compile(model) if way == "compile" else model

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        value = forward(batch).square().mean()
        value.backward()
        optimizer.step()
        return value

    for batch in batches:
        step(batch)
    run = step
    if way == "graph":
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step(batches[0])
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            captured = step(batches[0])

        def run(batch: torch.Tensor) -> torch.Tensor:
            graph.replay()
            return captured

    torch.cuda.synchronize()
    rounds = []
    for _ in range(3):
        begin = time.perf_counter()
        for at in range(steps):
            value = run(batches[at % len(batches)])
        torch.cuda.synchronize()
        rounds.append(steps / (time.perf_counter() - begin))
    print(f"steps a second {sorted(rounds)[1]:.2f}", file=sys.stderr)
    print(f"torch {way} {digest(model)} {float(value).hex()}")


if __name__ == "__main__":
    main()
