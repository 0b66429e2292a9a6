"""Sums tensors over two GPUs with NCCL, one process a GPU, and prints a digest of what the first has."""

from __future__ import annotations

import hashlib
import os

import torch
import torch.distributed as distributed
import torch.multiprocessing as processes


def work(rank: int, world: int) -> None:
    """Takes part as one of the processes."""
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", rank=rank, world_size=world, device_id=torch.device("cuda", rank))
    generator = torch.Generator(device="cuda").manual_seed(rank)
    found = hashlib.sha256()
    for step in range(60):
        tensor = torch.randn(1 << (10 + step % 12), device="cuda", generator=generator)
        distributed.all_reduce(tensor)
        parts = [torch.empty_like(tensor) for _ in range(world)]
        distributed.all_gather(parts, tensor * (rank + 1))
        found.update(parts[-1].cpu().numpy().tobytes())
    distributed.barrier()
    distributed.destroy_process_group()
    if rank == 0:
        print(f"nccl {found.hexdigest()[:16]}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    world = torch.cuda.device_count()
    processes.spawn(work, args=(world,), nprocs=world)
