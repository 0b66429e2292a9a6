"""A loop of reinforcement learning with and without parking: generate, park the cache, train, wake, generate.

    python rlhf.py [OUT.csv]

Each run is a process of its own. The losses of a run that parks equal those of the run that does not, and under
``policy:stitched`` the device's memory stays within 1.05 times the most that is awake at a time.
``python rlhf.py --run CONFIG 0|1`` does one run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import cachalot_gpu.torch as cachalot
import tables
from workloads import seed, train

MIB, GIB = 1 << 20, 1 << 30
LAYERS, WIDTH, HEADS, TOKENS = 8, 512, 8, 8192
SEQUENCES, PROMPT, LONGEST, NEW = 96, 64, 1024, 48
ROUNDS = 5
WANTED = 1.05


class Block(nn.Module):
    """One layer, with a cache of fixed size when it generates."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, cache: Tensor | None, at: int) -> Tensor:
        batch, length, _ = x.shape
        split = self.qkv(self.before(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        if cache is not None:
            cache[:, :, :, at : at + length] = split[1:]
            key, value = cache[0, :, :, : at + length], cache[1, :, :, : at + length]
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=length > 1)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.between(x))


class Policy(nn.Module):
    """A GPT of 34 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, tokens: Tensor, caches: list[Tensor] | None = None, at: int = 0) -> Tensor:
        x = self.token(tokens) + self.place(torch.arange(at, at + tokens.shape[1], device=tokens.device))
        for number, block in enumerate(self.blocks):
            x = block(x, caches[number] if caches else None, at)
        return self.head(x)


class Card:
    """The most memory that the device has in use, as the driver counts it, while a thread looks on."""

    def __init__(self) -> None:
        self.most = 0

    @staticmethod
    def used() -> int:
        """Bytes in use at this moment."""
        free, total = torch.cuda.mem_get_info()
        return total - free

    def look(self) -> None:
        """Notes the use of this moment."""
        self.most = max(self.most, self.used())

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Looks every millisecond."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.001):
                self.look()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@torch.no_grad()
def generate(policy: Policy, caches: list[Tensor], prompts: Tensor, random: torch.Generator) -> Tensor:
    """Draws new tokens behind the prompts."""
    tokens, last = prompts, prompts
    for _ in range(NEW):
        at = tokens.shape[1] - last.shape[1]
        chances = policy(last, caches, at)[:, -1].softmax(-1)
        last = torch.multinomial(chances, 1, generator=random)
        tokens = torch.cat([tokens, last], 1)
    return tokens


def loss_of(policy: Policy, tokens: Tensor) -> Callable[[], Tensor]:
    """The weighted likelihood of what was generated. The reward of a sequence is the part of its even tokens."""
    reward = (tokens[:, PROMPT:] % 2 == 0).float().mean(1)
    advantage = (reward - reward.mean()) / (reward.std() + 1e-6)

    def loss() -> Tensor:
        logits = policy(tokens[:, :-1])[:, PROMPT - 1 :]
        chosen = logits.log_softmax(-1).gather(-1, tokens[:, PROMPT:, None])[..., 0]
        return -(advantage[:, None] * chosen).mean()

    return loss


def run(config: str, parks: bool) -> dict[str, Any]:
    """Runs the loop, and returns its losses and its memory."""
    cachalot.enable(config)
    seed()
    random = torch.Generator("cuda").manual_seed(1)
    policy = Policy().cuda()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    with cachalot.Tag("kv_cache") if parks else nullcontext():
        shape = (2, SEQUENCES, HEADS, LONGEST, WIDTH // HEADS)
        caches = [torch.zeros(shape, device="cuda") for _ in range(LAYERS)]
    bytes_of_cache = sum(cache.nbytes for cache in caches)
    card, awake, losses = Card(), 0, []
    outside = 0

    def phase(asleep: int) -> None:
        # What the phase has allocated at its peak, less what was parked in it.
        nonlocal awake
        torch.cuda.synchronize()
        card.look()
        awake = max(awake, torch.cuda.max_memory_allocated() - asleep)
        torch.cuda.reset_peak_memory_stats()

    with card.watched():
        for number in range(ROUNDS + 1):
            if number == 1:
                # The first round has loaded all kernels: from here on, only tensors need memory.
                torch.cuda.empty_cache()
                outside = card.used() - torch.cuda.memory_reserved()
                card.most = awake = 0
                torch.cuda.reset_peak_memory_stats()
            prompts = torch.randint(TOKENS, (SEQUENCES, PROMPT), device="cuda", generator=random)
            tokens = generate(policy, caches, prompts, random)
            phase(0)
            if parks:
                cachalot.Tag("kv_cache").park(keep=False)
            torch.cuda.reset_peak_memory_stats()
            for _ in range(2):
                losses.append(float(train(optimizer, loss_of(policy, tokens))))
            phase(bytes_of_cache if parks else 0)
            if parks:
                cachalot.Tag("kv_cache").wake()
            torch.cuda.reset_peak_memory_stats()
    return {"losses": [loss.hex() for loss in losses], "card": card.most - outside, "awake": awake}


def main() -> int:
    """Runs every configuration with and without parking, and compares."""
    rows = [["configuration", "losses", "peak of the card, MiB", "most awake, MiB", "peak / awake"]]
    failed = False
    for config in ("policy:caching", "policy:caching,expandable_segments:True", "policy:stitched"):
        results = []
        for parks in (False, True):
            command = [sys.executable, __file__, "--run", config, str(int(parks))]
            environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
        equal = results[0]["losses"] == results[1]["losses"]
        for parks, result in zip(("", ", parks"), results):
            ratio = result["card"] / result["awake"]
            figures = [f"{result['card'] / MIB:.0f}", f"{result['awake'] / MIB:.0f}", f"{ratio:.3f}"]
            rows.append([f"`{config}`{parks}", "=" if equal else "DIFFER", *figures])
            failed |= config == "policy:stitched" and ratio > WANTED
        failed |= not equal
    print(tables.text(rows))
    if sys.argv[1:]:
        tables.write(Path(sys.argv[1]), rows)
    return int(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(run(sys.argv[2], sys.argv[3] == "1")))
    else:
        sys.exit(main())
