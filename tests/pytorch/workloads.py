"""Five programs in plain PyTorch whose requests differ from step to step.

Each function builds its model on the current device and returns ``step(number)``, which does one step and returns a
scalar that depends on all of its work. The same seeds give the same requests and, with deterministic kernels, the
same numbers, whichever allocator serves them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Step = Callable[[int], Tensor]
WORKLOADS: dict[str, Callable[[], Step]] = {}


def workload(build: Callable[[], Step]) -> Callable[[], Step]:
    """Puts a program into the table, by its name."""
    WORKLOADS[build.__name__] = build
    return build


def seed() -> random.Random:
    """The same weights, inputs and sizes in every process; kernels that repeat themselves."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    # It plans anew for each length of a sequence, which takes longer than all else.
    torch.backends.cuda.enable_cudnn_sdp(False)
    return random.Random(0)


class Attention(nn.Module):
    """Causal attention, with the keys and values of earlier tokens if there are any."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, length, width = x.shape
        split = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=past is None)
        return self.out(seen.transpose(1, 2).reshape(batch, length, width)), (key, value)


class Layer(nn.Module):
    """One layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        seen, cache = self.attention(self.before(x), past)
        x = x + seen
        return x + self.mlp(self.between(x)), cache


class Gpt(nn.Module):
    """A GPT-2: 124 million parameters with the defaults."""

    def __init__(
        self, layers: int = 12, width: int = 768, heads: int = 12, tokens: int = 50257, longest: int = 1024
    ) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(
        self, tokens: Tensor, caches: list[tuple[Tensor, Tensor]] | None = None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        start = caches[0][0].shape[2] if caches else 0
        places = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.place(places)
        grown = []
        for number, layer in enumerate(self.layers):
            x, cache = layer(x, caches[number] if caches else None)
            grown.append(cache)
        return self.head(self.norm(x)), grown


def train(optimizer: torch.optim.Optimizer, loss_of: Callable[[], Tensor]) -> Tensor:
    """One step of training."""
    optimizer.zero_grad(set_to_none=True)
    loss = loss_of()
    loss.backward()
    optimizer.step()
    return loss.detach()


def text_training(model: Gpt, sizes: random.Random, batch: int) -> Step:
    """Batches of sequences of 64 to 1023 tokens, bfloat16 autocast."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(_: int) -> Tensor:
        tokens = torch.randint(0, 50257, (batch, sizes.randint(64, 1023)), device="cuda")

        def loss() -> Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                logits, _ = model(tokens)
                return functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))

        return train(optimizer, loss)

    return step


@workload
def gpt2_training() -> Step:
    """GPT-2 small, eight sequences a batch."""
    sizes = seed()
    return text_training(Gpt().cuda(), sizes, 8)


@workload
def decoder_tuning() -> Step:
    """A decoder of 350 million parameters, four sequences a batch."""
    sizes = seed()
    return text_training(Gpt(layers=24, width=1024, heads=16).cuda(), sizes, 4)


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(8, outside), nn.SiLU(), nn.Conv2d(outside, outside, 3, padding=1))
        self.shortcut = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) + self.shortcut(x)


class UNet(nn.Module):
    """A diffusion U-Net over 4 channels, four scales."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        widths = [width, 2 * width, 3 * width, 4 * width]
        self.down = nn.ModuleList(Residual(a, b) for a, b in zip([width, *widths], widths))
        self.middle = Residual(widths[-1], widths[-1])
        self.up = nn.ModuleList(Residual(2 * b, a) for a, b in zip([width, *widths], widths))
        self.leave = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x, kept = self.enter(x), []
        for scale, block in enumerate(self.down):
            x = block(functional.avg_pool2d(x, 2) if scale else x)
            kept.append(x)
        x = self.middle(x)
        for scale, block in reversed(list(enumerate(self.up))):
            x = block(torch.cat([x, kept.pop()], 1))
            x = x.repeat_interleave(2, 2).repeat_interleave(2, 3) if scale else x
        return self.leave(x)


@workload
def diffusion_unet() -> Step:
    """A diffusion U-Net on images of seven aspect ratios, with a running mean of its weights."""
    sizes = seed()
    shapes = [(64, 64), (48, 80), (80, 48), (96, 40), (40, 96), (56, 72), (72, 56)]
    model = UNet().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    mean = [weight.detach().clone() for weight in model.parameters()]

    def step(_: int) -> Tensor:
        clean = torch.randn(16, 4, *sizes.choice(shapes), device="cuda")
        noise = torch.randn_like(clean)

        def loss() -> Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                return functional.mse_loss(model(clean + noise), noise)

        done = train(optimizer, loss)
        torch._foreach_lerp_(mean, [weight.detach() for weight in model.parameters()], 0.01)
        return done

    return step


@workload
def llm_decoding() -> Step:
    """Up to eight conversations that come and go, each with a cache that grows by one token a step. One step is one
    token for each."""
    sizes = seed()
    model = Gpt(layers=16, width=1024, heads=16, tokens=32000, longest=4096).to(torch.bfloat16).cuda().eval()
    talks: list[tuple[list[tuple[Tensor, Tensor]], Tensor, int]] = []

    @torch.no_grad()
    def step(_: int) -> Tensor:
        if len(talks) < 8 and (not talks or sizes.random() < 0.35):
            prompt = torch.randint(0, 32000, (1, min(3000, int(30 * sizes.lognormvariate(1.6, 1.0)))), device="cuda")
            logits, caches = model(prompt)
            talks.append((caches, logits[:, -1:].argmax(-1), sizes.randint(5, 160)))
        total = torch.zeros((), device="cuda")
        for number, (caches, token, left) in enumerate(talks):
            logits, caches = model(token, caches)
            total += logits.float().logsumexp(-1).sum()
            talks[number] = (caches, logits[:, -1:].argmax(-1), left - 1)
        talks[:] = [talk for talk in talks if talk[2] > 0]
        return total

    return step


@workload
def prefetcher() -> Step:
    """A convolutional network fed by a stream of its own, with some of its work on a third stream: blocks cross
    streams at every step."""
    sizes = seed()
    widths = [3, 64, 128, 256, 512]
    blocks = [
        nn.Sequential(
            nn.Conv2d(a, b, 3, 2, 1),
            nn.GroupNorm(8, b),
            nn.ReLU(),
            nn.Conv2d(b, b, 3, 1, 1),
            nn.GroupNorm(8, b),
            nn.ReLU(),
        )
        for a, b in zip(widths, widths[1:])
    ]
    features, head = nn.Sequential(*blocks).cuda(), nn.Linear(widths[-1], 1000).cuda()
    optimizer = torch.optim.SGD([*features.parameters(), *head.parameters()], lr=0.1)
    feeding, aside = torch.cuda.Stream(), torch.cuda.Stream()
    host = [torch.randn(sizes.choice([48, 64, 96]), 3, 224, 224).pin_memory() for _ in range(5)]

    def fetch(number: int) -> Tensor:
        with torch.cuda.stream(feeding):
            return host[number % 5].cuda(non_blocking=True).half().float()

    coming = [fetch(0)]

    def step(number: int) -> Tensor:
        main = torch.cuda.current_stream()
        main.wait_stream(feeding)
        images = coming.pop()
        images.record_stream(main)
        coming.append(fetch(number + 1))
        loss = train(optimizer, lambda: head(features(images).mean((2, 3))).logsumexp(-1).mean())
        aside.wait_stream(main)
        with torch.cuda.stream(aside):
            flat = images[:16].flatten(1)
            images.record_stream(aside)
            likeness = (flat @ flat.t()).softmax(-1).sum()
        main.wait_stream(aside)
        likeness.record_stream(main)
        return loss + likeness

    return step
