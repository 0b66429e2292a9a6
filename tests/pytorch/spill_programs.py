"""The programs of spill.py, and one run of each: its steps, their times and what they computed.

    python spill_programs.py PROGRAM CANDIDATE LIMITS OUTSIDE SECONDS

Prints a line of JSON for each limit, in the order of the limits: those without one come first. LIMITS are bytes with
commas between, 0 for none, and `/1.25` for what the last run without a limit holds, divided by 1.25: so one process
does all runs of a program. OUTSIDE is what the device holds besides tensors at the end of the run without a limit. The
steps of a run end early after so many seconds.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import sys
import time
import weakref
from collections.abc import Callable
from functools import cache
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch

# The steps of a program, if they are not 24: fewer where one takes long, or where all are alike.
FEW_STEPS = {"diffusion_unet": 12, "generate_then_train": 4, "batch_decoding": 12}
EXPANDABLE = "expandable_segments:True"
MANAGED = Path(__file__).with_name("libmanaged.so")
Step = Callable[[int], torch.Tensor]


def steps_of(name: str) -> int:
    """How many steps a program does."""
    return FEW_STEPS.get(name, 24)


def generate_then_train() -> Step:
    """Reinforcement learning as in rlhf.py: 96 sequences get 12 tokens with a cache of 3 GiB, which stays, and are trained on twice."""
    import rlhf
    import workloads

    rlhf.NEW = 12
    workloads.seed()
    random = torch.Generator("cuda").manual_seed(1)
    policy = rlhf.Policy().cuda()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    shape = (2, rlhf.SEQUENCES, rlhf.HEADS, rlhf.LONGEST, rlhf.WIDTH // rlhf.HEADS)
    caches = [torch.zeros(shape, device="cuda") for _ in range(rlhf.LAYERS)]

    def step(_: int) -> torch.Tensor:
        prompts = torch.randint(rlhf.TOKENS, (rlhf.SEQUENCES, rlhf.PROMPT), device="cuda", generator=random)
        tokens = rlhf.generate(policy, caches, prompts, random)
        first = workloads.train(optimizer, rlhf.loss_of(policy, tokens))
        return first + workloads.train(optimizer, rlhf.loss_of(policy, tokens))

    return step


def batch_decoding() -> Step:
    """Inference: 16 prompts of 200 to 1500 tokens, and 24 tokens more for each, with a cache that grows by a copy."""
    import workloads

    sizes = workloads.seed()
    model = workloads.Gpt(layers=16, width=1024, heads=16, tokens=32000, longest=4096)
    model = model.to(torch.bfloat16).cuda().eval()

    @torch.no_grad()
    def step(_: int) -> torch.Tensor:
        tokens = torch.randint(0, 32000, (16, sizes.randint(200, 1500)), device="cuda")
        total, caches = torch.zeros((), device="cuda"), None
        for _ in range(24):
            logits, caches = model(tokens, caches)
            last = logits[:, -1:]
            total += last.float().logsumexp(-1).sum()
            tokens = last.argmax(-1)
        return total

    return step


def program(name: str) -> Step:
    """Builds a program."""
    import workloads

    return (workloads.WORKLOADS | {"generate_then_train": generate_then_train, "batch_decoding": batch_decoding})[name]()


@cache
def plugin() -> torch.cuda.memory.CUDAPluggableAllocator:
    """The allocator of managed memory, which lives as long as any pool of it."""
    return torch.cuda.memory.CUDAPluggableAllocator(str(MANAGED), "managed_malloc", "managed_free")


def managed(limit: int, outside: int) -> AbstractContextManager[Any]:
    """Leads requests to managed memory, and takes the device's memory but the limit and what else the run needs."""
    torch.cuda.init()
    torch.cuda.synchronize()
    ballast = ctypes.CDLL(str(MANAGED)).ballast
    ballast(ctypes.c_size_t(0))
    available, total = torch.cuda.mem_get_info()
    still_to_come = max(0, outside - (total - available))
    if code := ballast(ctypes.c_size_t(available - limit - still_to_come)):
        raise RuntimeError(f"the ballast was refused with {code}")
    # PyTorch's own allocator keeps and divides the managed memory. It leads the requests of one thread.
    torch.autograd.set_multithreading_enabled(False)
    return torch.cuda.use_mem_pool(torch.cuda.MemPool(plugin().allocator()))


def optimizer_on_the_host() -> AbstractContextManager[Any]:
    """Places what the first step of an optimizer allocates, its state, on the host."""
    import cachalot_gpu.torch

    spilled, hooks, open_now = cachalot_gpu.torch.spilled, [], ExitStack()

    def before(*_: Any) -> None:
        open_now.enter_context(spilled())

    def after(*_: Any) -> None:
        open_now.close()
        for hook in hooks:
            hook.remove()

    hooks += [
        torch.optim.optimizer.register_optimizer_step_pre_hook(before),
        torch.optim.optimizer.register_optimizer_step_post_hook(after),
    ]
    return open_now


def prepare(candidate: str, limit: int, outside: int) -> AbstractContextManager[Any]:
    """Puts the candidate's allocator in place, and the limit."""
    if candidate == "managed":
        return managed(limit, outside)
    if candidate in {"spill", "state", "fits"}:
        import cachalot_gpu.torch

        # Also where all fits, so that one process does both. Nothing spills then.
        if not cachalot_gpu.torch.enabled():
            cachalot_gpu.torch.enable(f"{EXPANDABLE},spill:24G")
    torch.cuda.init()
    if limit:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    return optimizer_on_the_host() if candidate == "state" else nullcontext()


def of_pages() -> tuple[int, float]:
    """The bytes that lie on the host, and the seconds of all calls of the driver for pages."""
    cachalot = sys.modules.get("cachalot_gpu.torch")
    found = cachalot.statistics() if cachalot and cachalot.enabled() else {}
    calls = [us for name, us in found.items() if name.startswith("pages.") and name.endswith(".us")]
    return found.get("pages.spilled_bytes", 0), sum(calls) / 1e6


def weights() -> list[torch.nn.Parameter]:
    """All weights that live."""
    return [each for each in gc.get_objects() if isinstance(each, torch.nn.Parameter)]


def digest(earlier: list[weakref.ref[torch.nn.Parameter]]) -> str:
    """A digest of all weights but earlier ones, in any order: the collector's changes from run to run."""
    known = {id(each()) for each in earlier}
    of = lambda each: hashlib.sha256(each.detach().cpu().view(torch.uint8).numpy().tobytes()).hexdigest()  # noqa: E731
    return hashlib.sha256("".join(sorted(of(each) for each in weights() if id(each) not in known)).encode()).hexdigest()[:16]


def run(name: str, candidate: str, limit: int, outside: int, seconds: float) -> dict[str, Any]:
    """Does the steps."""
    found: dict[str, Any] = {"seconds": [], "driver_s": [], "losses": [], "peaks": [], "spilled": 0, "held": 0}
    earlier = [weakref.ref(each) for each in weights()]
    with prepare(candidate, limit, outside):
        torch.cuda.reset_peak_memory_stats()
        try:
            step, end = program(name), time.perf_counter() + seconds
            for number in range(steps_of(name)):
                if candidate == "fits":
                    torch.cuda.reset_peak_memory_stats()
                before, begin = of_pages()[1], time.perf_counter()
                loss = step(number)
                torch.cuda.synchronize()
                found["seconds"].append(time.perf_counter() - begin)
                found["losses"].append(loss.item().hex())
                spilled, driver_s = of_pages()
                found["spilled"] = max(found["spilled"], spilled)
                found["driver_s"].append(driver_s - before)
                if candidate != "managed":
                    found["held"] = max(found["held"], torch.cuda.max_memory_reserved())
                if candidate == "fits":
                    found["peaks"].append(torch.cuda.max_memory_allocated())
                if time.perf_counter() > end:
                    break
            found["digest"] = digest(earlier) if len(found["losses"]) == steps_of(name) else None
        except torch.OutOfMemoryError:
            found["out of memory"] = True
        if candidate == "fits":
            available, total = torch.cuda.mem_get_info()
            found["outside"] = total - available - torch.cuda.memory_reserved()
    return found


def main() -> None:
    """One run for each limit."""
    name, candidate, limits, outside, seconds = sys.argv[1:]
    held = 0
    for text in limits.split(","):
        limit = int(held / float(text[1:])) if text.startswith("/") else int(text)
        kind = candidate if limit else "fits"
        found = run(name, kind, limit, int(outside), float(seconds))
        # Each run without a limit counts anew: the first one also loads kernels.
        held = held if limit else found["held"]
        print(json.dumps(found | {"limit": limit, "candidate": kind}), flush=True)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
