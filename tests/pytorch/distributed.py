"""DistributedDataParallel and FSDP2 on two GPUs, under PyTorch's allocator and with cachalot in its place.

    python distributed.py [--only WORD] OUT

Each case runs in two processes, one for each GPU, which train a small transformer with NCCL or pass memory to NCCL. The
losses are the same to the last bit under every allocator. Writes ``OUT/two_gpus.csv`` and ``OUT/distributed.json``.

Three ways lead memory to NCCL: nothing (NCCL copies through buffers of its own), the hook of every segment
(``TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK``), and a ``MemPool`` that the program registers. NCCL says in its log
how many buffers were registered.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tables

STEPS, BATCH, LENGTH, TOKENS = 30, 8, 256, 8192
SIDE_BY_SIDE, LIMIT_S, RANKS = 3, 150, 2
MIB = 1 << 20
PATTERN = "register comm"
"""What NCCL writes for each buffer that the program registers."""

ALLOCATORS = {"torch": "", "cachalot": "policy:caching", "cachalot, stitched": "policy:stitched"}
CASES = {
    # name: (what runs, whether every segment is registered, the allocators)
    "DDP": ("ddp", False, list(ALLOCATORS)),
    "FSDP2": ("fsdp", False, list(ALLOCATORS)),
    "DDP, every segment registered": ("ddp", True, ["torch", "cachalot"]),
    "a registered MemPool": ("pool", False, ["torch", "cachalot"]),
    "a registered MemPool of NCCL's memory": ("nccl_pool", False, ["torch", "cachalot"]),
}
Answer = dict[str, Any]


# ---- A process of a case ----


def train(kind: str, rank: int) -> Answer:
    """Trains for some steps. Returns the losses and the peaks."""
    import torch
    import workloads
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    workloads.seed()
    model: Any = workloads.Gpt(layers=6, width=512, heads=8, tokens=TOKENS, longest=LENGTH).cuda()
    if kind == "ddp":
        model = DistributedDataParallel(model, device_ids=[rank])
    else:
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator("cuda").manual_seed(1 + rank)
    losses = []
    for step in range(STEPS):
        length = LENGTH - 8 * (step % 5)
        tokens = torch.randint(0, TOKENS, (BATCH, length), device="cuda", generator=generator)
        logits, _ = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return {"values": losses}


def reduce_in_pool(kind: str, rank: int) -> Answer:
    """Sums tensors of a registered pool over both processes. Returns what came of it."""
    import torch
    import torch.distributed as dist

    group = dist.distributed_c10d._get_default_group()
    backend: Any = group._get_backend(torch.device("cuda"))
    pool = torch.cuda.MemPool(backend.mem_allocator) if kind == "nccl_pool" else torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensors = [torch.full((size,), float(rank + 1), device="cuda") for size in (1000, 3 * MIB, 8 * MIB)]
    segments = len(pool.snapshot())
    backend.register_mem_pool(pool)
    with torch.cuda.use_mem_pool(pool):
        # The pool grows while it is registered.
        tensors.append(torch.full((16 * MIB,), float(rank + 1), device="cuda"))
    for tensor in tensors:
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    values = [[tensor.min().item(), tensor.max().item()] for tensor in tensors]
    grown = len(pool.snapshot())
    backend.deregister_mem_pool(pool)
    del tensors, tensor
    return {"values": [values, segments, grown]}


def run(kind: str, config: str, rank: int, folder: Path) -> None:
    """One process of a case: writes its answer to a file."""
    import torch

    if config:
        import cachalot_gpu.torch

        cachalot_gpu.torch.enable(config)
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    # With a device, NCCL's communicator is made at once: memory can be registered with it.
    dist.init_process_group(
        "nccl",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=RANKS,
        device_id=torch.device("cuda", rank),
    )
    answer = reduce_in_pool(kind, rank) if kind.endswith("pool") else train(kind, rank)
    torch.cuda.synchronize()
    answer |= {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    answer["allocator"] = torch.cuda.get_allocator_backend()
    dist.barrier()
    (folder / f"answer-{rank}.json").write_text(json.dumps(answer))
    dist.destroy_process_group()


# ---- The process that starts them ----


def start(case: str, allocator: str) -> Answer:
    """Runs a case under one allocator. Returns the answers of both processes, or the last line of the error."""
    kind, registers, _ = CASES[case]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = os.environ | {
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            # Multicast over NVLink needs a fabric that not every machine has.
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "REG",
            "NCCL_DEBUG_FILE": f"{folder}/nccl-%p.log",
            "NCCL_CUMEM_ENABLE": "1",
            "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": str(int(registers)),
        }
        command = [sys.executable, "-W", "ignore", __file__, "--run", kind, ALLOCATORS[allocator], name]
        logs = [(folder / f"output-{rank}.txt").open("w+") for rank in range(RANKS)]
        processes = [
            subprocess.Popen([*command, str(rank)], env=environment, stdout=log, stderr=log)
            for rank, log in enumerate(logs)
        ]
        error = ""
        for rank, process in enumerate(processes):
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                error = error or f"process {rank} took more than {LIMIT_S} s"
                process.kill()
                process.wait()
            logs[rank].seek(0)
            lines = [line for line in logs[rank].read().splitlines() if line.strip()]
            if process.returncode and not error:
                told = [line for line in lines if "Error" in line]
                error = f"process {rank}: {(told or lines or ['no output'])[-1][:300]}"
        if error:
            return {"error": error, "output": [log.read() for log in map(rewound, logs)]}
        answers = [json.loads((folder / f"answer-{rank}.json").read_text()) for rank in range(RANKS)]
        registered = [line for log in folder.glob("nccl-*.log") for line in log.read_text().splitlines()]
        count = sum(PATTERN in line and "de" + PATTERN not in line for line in registered)
        return {"ranks": answers, "registered": count, "nccl": registered[:40]}


def rewound(log: Any) -> Any:
    """Returns a file at its beginning."""
    log.seek(0)
    return log


def peaks(answer: Answer, key: str) -> str:
    """Returns a peak of both processes in MiB."""
    return ", ".join(f"{rank[key] / MIB:,.1f}" for rank in answer["ranks"])


def row(case: str, allocator: str, answer: Answer, base: Answer) -> tuple[list[str], bool]:
    """Returns a line of the table, and whether the case is as under PyTorch's allocator."""
    if "error" in answer:
        return [case, allocator, answer["error"], "", "", ""], False
    same = "error" not in base and [rank["values"] for rank in answer["ranks"]] == [
        rank["values"] for rank in base["ranks"]
    ]
    registered = answer["registered"]
    announced = CASES[case][1] or CASES[case][0].endswith("pool")
    good = same and bool(registered) == (announced and bool(base.get("registered")))
    cells = [case, allocator, "equal" if same else "DIFFERENT"]
    cells += [peaks(answer, "allocated"), peaks(answer, "reserved"), str(registered)]
    return cells, good


def main() -> int:
    """Runs the cases, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="the cases whose name contains this word")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    import torch

    if torch.cuda.device_count() < RANKS:
        print(f"skipped: {RANKS} GPUs are needed, and PyTorch finds {torch.cuda.device_count()}")
        return 0
    pairs = [(case, allocator) for case in CASES if arguments.only in case for allocator in CASES[case][2]]
    # Compiles what the processes of the cases load.
    subprocess.run([sys.executable, "-c", "import cachalot_gpu.torch as c; c.enable()"], check=True)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        answers = dict(zip(pairs, pool.map(lambda pair: start(*pair), pairs)))
    lines = [["case", "allocator", "losses or sums", "peaks allocated, MiB", "peaks reserved, MiB", "buffers registered"]]
    failed = 0
    for (case, allocator), answer in answers.items():
        line, good = row(case, allocator, answer, answers[case, "torch"])
        lines.append(line)
        failed += not good
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = tables.write(arguments.out / "two_gpus.csv", lines)
    told = [{"case": case, "allocator": allocator, **answer} for (case, allocator), answer in answers.items()]
    (arguments.out / "distributed.json").write_text(json.dumps(told, indent=1))
    print(text + f"{len(answers) - failed} of {len(answers)} as under PyTorch's allocator")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(sys.argv[2], sys.argv[3], int(sys.argv[5]), Path(sys.argv[4]))
    else:
        sys.exit(main())
