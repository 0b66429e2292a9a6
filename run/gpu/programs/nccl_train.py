"""Trains a transformer on all GPUs, compiled by Triton, with gradients summed by NCCL. One process of several: RANK and WORLD say which.

Each process prints a digest of its weights. The digests of all processes are equal, because NCCL sums the same gradients for each.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29513")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch
import torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel
from torch_steps import digest


def main() -> None:
    """Trains and prints."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", rank=rank, world_size=world, device_id=torch.device("cuda", rank))
    torch.manual_seed(7)
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda()
    parallel = DistributedDataParallel(torch.compile(model), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 30):
        optimizer.zero_grad(set_to_none=True)
        parallel(torch.randn(8, 128, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(f"weights {digest(model)}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
