"""Programs that use pinned memory, under PyTorch's allocator of pinned memory and under cachalot's.

    python pinned_programs.py OUT      # every program; writes OUT/pytorch.csv and records OUT/NAME.csv.gz

Each program runs in a process of its own under each allocator. Under cachalot, ``pinned_recorder.c`` writes down every
request, use and free. *asked* is the most bytes that the program holds at one time, by the record; *pinned* is the most
that the allocator holds of the system. ``python pinned_programs.py --program NAME native|cachalot`` runs one.

Needs PyTorch 2.8 or later, transformers, a GPU and a C compiler.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Iterator

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

import tables

MIB = 1 << 20
PROGRAMS: dict[str, Callable[[], None]] = {}


def program(function: Callable[[], None]) -> Callable[[], None]:
    """Adds a program under the name of its function."""
    PROGRAMS[function.__name__] = function
    return function


class Items(Dataset[Any]):
    """Items that a function makes of their number."""

    def __init__(self, count: int, make: Callable[[int], Any]) -> None:
        """Takes the number of items, and what makes one."""
        self.count, self.make = count, make

    def __len__(self) -> int:
        """Returns the number of items."""
        return self.count

    def __getitem__(self, number: int) -> Any:
        """Makes an item."""
        return self.make(number)


def train(loader: DataLoader[Any], work: int) -> None:
    """Copies every batch to the GPU, and lets the GPU work as a step of training would. Reads the loss every 10 steps."""
    weight = torch.rand(4096, 4096, device="cuda")
    for step, batch in enumerate(loader):
        tensors = batch if isinstance(batch, (list, tuple)) else batch.values()
        on_device = [tensor.to("cuda", non_blocking=True) for tensor in tensors]
        for _ in range(work):
            weight = (weight @ weight).clamp_(-1, 1)
        del on_device
        if step % 10 == 9:
            weight[0, 0].item()


def image(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An image of 224 x 224, and its class."""
    return torch.full((3, 224, 224), float(number % 255)), torch.tensor(number % 1000)


@program
def images() -> None:
    """A loader of equal batches of images."""
    train(DataLoader(Items(96 * 128, image), 128, num_workers=6, pin_memory=True, drop_last=False), 4)


def sentence(number: int) -> list[int]:
    """Tokens of a sentence, whose number is as in a corpus: most are short."""
    length = int(min(max(random.Random(number).lognormvariate(5.2, 0.8), 8), 2048))
    return [number % 30000] * length


def padded(sentences: list[list[int]]) -> dict[str, torch.Tensor]:
    """A batch as transformers' collators make them: padded to the longest, with a mask and labels."""
    width = max(map(len, sentences))
    ids = torch.tensor([tokens + [0] * (width - len(tokens)) for tokens in sentences])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids.clone()}


@program
def text() -> None:
    """A loader of sentences, each batch as wide as its longest."""
    train(DataLoader(Items(400 * 64, sentence), 64, collate_fn=padded, num_workers=4, pin_memory=True), 2)


def waveform(number: int) -> torch.Tensor:
    """2 to 20 s of sound at 16 kHz."""
    return torch.full((int(random.Random(number).uniform(2, 20) * 16000),), 0.5)


def padded_sound(waves: list[torch.Tensor]) -> list[torch.Tensor]:
    """A batch of sound, padded to the longest, and the lengths."""
    return [torch.nn.utils.rnn.pad_sequence(waves, batch_first=True), torch.tensor([len(wave) for wave in waves])]


@program
def sound() -> None:
    """A loader of sound, each batch as long as its longest."""
    train(DataLoader(Items(300 * 32, waveform), 32, collate_fn=padded_sound, num_workers=4, pin_memory=True), 4)


def photograph(number: int) -> torch.Tensor:
    """A photograph as detectors resize them: the shorter side 480 to 800, the longer at most 1333."""
    dice = random.Random(number)
    short = dice.choice(range(480, 801, 32))
    long = min(int(short * dice.uniform(1, 1.8)), 1333)
    return torch.zeros(3, *((short, long) if dice.random() < 0.5 else (long, short)))


@program
def detection() -> None:
    """A loader of photographs, each pinned by itself."""
    train(DataLoader(Items(150 * 16, photograph), 16, collate_fn=list, num_workers=6, pin_memory=True), 6)


class ByLength(Sampler[list[int]]):
    """Batches of like lengths with about as many tokens each, in a random order."""

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the numbers of the items of each batch."""
        order = sorted(range(20000), key=lambda number: len(sentence(number)))
        batches: list[list[int]] = [[]]
        for number in order:
            if (len(batches[-1]) + 1) * len(sentence(number)) > 65536:
                batches.append([])
            batches[-1].append(number)
        random.Random(0).shuffle(batches)
        return iter(batches)


@program
def buckets() -> None:
    """A loader of sentences in batches of as many tokens."""
    train(DataLoader(Items(20000, sentence), batch_sampler=ByLength(), collate_fn=padded, num_workers=4,
                     pin_memory=True), 2)


@program
def activations() -> None:
    """A GPT-2 whose activations wait in pinned memory for the backward pass: `save_on_cpu(pin_memory=True)`."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=8, n_embd=768, n_head=12)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    dice = random.Random(0)
    for _ in range(12):
        ids = torch.randint(0, 50000, (4, dice.randrange(256, 1024)), device="cuda")
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def gradients() -> None:
    """An optimizer on the host: gradients come down every step, weights go up."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_embd=768, n_head=12)).cuda()
    masters = [weight.detach().to("cpu", non_blocking=True) for weight in model.parameters()]
    torch.cuda.synchronize()
    for step in range(10):
        ids = torch.randint(0, 50000, (4, 128 + 64 * step), device="cuda")
        model(input_ids=ids, labels=ids).loss.backward()
        down = [weight.grad.to("cpu", non_blocking=True) for weight in model.parameters()]
        torch.cuda.synchronize()
        torch._foreach_add_(masters, down, alpha=-1e-4)
        with torch.no_grad():
            for weight, master in zip(model.parameters(), masters):
                weight.copy_(master, non_blocking=True)
        model.zero_grad()


def serve(chunk: int | None, room: int) -> None:
    """A server of a Llama with 16 layers and 8 heads of keys and values, which keeps the caches of the conversations
    used last in pinned memory: each layer whole, or in chunks of so many tokens."""
    dice = random.Random(1)
    kept: OrderedDict[int, list[torch.Tensor]] = OrderedDict()
    bytes_kept = 0
    heads, width, layers = 8, 128, 16
    cache = torch.zeros(2, 8192, heads, width, dtype=torch.bfloat16, device="cuda")
    copies = torch.cuda.Stream()
    for _ in range(600):
        conversation = int(dice.paretovariate(0.7)) % 300
        before = kept.pop(conversation, [])
        bytes_kept -= sum(part.nbytes for part in before)
        tokens = dice.randrange(64, 4096)
        with torch.cuda.stream(copies):
            for tensor in before:
                tensor.to("cuda", non_blocking=True)
            spans = [tokens] if chunk is None else [chunk] * (tokens // chunk) + [tokens % chunk] * (tokens % chunk > 0)
            parts = []
            for span in spans:
                for _ in range(layers if chunk is None else 1):
                    size = (2, span, heads, width) if chunk is None else (layers, 2, span, heads, width)
                    part = torch.empty(size, dtype=torch.bfloat16, pin_memory=True)
                    (part if chunk is None else part[0]).copy_(cache[:, :span], non_blocking=True)
                    parts.append(part)
        del before
        wanted = sum(part.nbytes for part in parts)
        while kept and bytes_kept + wanted > room:
            bytes_kept -= sum(part.nbytes for part in kept.popitem(last=False)[1])
        kept[conversation] = parts
        bytes_kept += wanted
    torch.cuda.synchronize()


@program
def conversations() -> None:
    """The caches of conversations, a tensor for each layer."""
    serve(None, 4 << 30)


@program
def chunks() -> None:
    """The caches of conversations in chunks of 256 tokens."""
    serve(256, 4 << 30)


def held() -> int:
    """The most bytes held of the system, by the name that this version of PyTorch has for it."""
    stats = torch.cuda.host_memory_stats()
    return next(stats[name] for name in ("reserved_bytes.peak", "allocated_bytes.peak") if name in stats)


def run(name: str, allocator: str, recorder: Path, record: Path) -> dict[str, float]:
    """Runs a program in a process of its own, and returns its figures."""
    variables = dict(os.environ)
    if allocator == "cachalot":
        import cachalot_gpu

        library = next((Path(cachalot_gpu.__file__).parent / "lib").glob("libcachalot.so.*"))
        variables |= {"LD_PRELOAD": str(recorder), "PINNED_RECORD": str(record), "PINNED_LIBRARY": str(library)}
    command = [sys.executable, "-W", "ignore", __file__, "--program", name, allocator]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        raise SystemExit(f"{name} under {allocator} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def asked(record: str) -> tuple[int, int]:
    """Returns the most bytes that a record holds at one time, and the number of requests."""
    live: dict[str, int] = {}
    now = most = requests = 0
    for line in record.splitlines():
        action, block, *rest = line.split(",")
        if action == "a":
            live[block] = int(rest[0])
            now, requests = now + live[block], requests + 1
            most = max(most, now)
        elif action == "f":
            now -= live.pop(block)
    return most, requests


def main(out: Path) -> None:
    """Runs every program under both allocators, and writes the table and the records."""
    out.mkdir(parents=True, exist_ok=True)
    rows: list[list[object]] = [["program", "requests", "asked, MiB", "PyTorch: pinned ÷ asked", "cachalot: pinned ÷ asked",
                                 "segments obtained", "given back", "seconds, PyTorch", "seconds, cachalot"]]
    with tempfile.TemporaryDirectory() as folder:
        recorder = Path(folder) / "recorder.so"
        source = Path(__file__).parent / "pinned_recorder.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", str(source), "-o", str(recorder)], check=True)

        def both(name: str) -> tuple[dict[str, float], dict[str, float], str]:
            record = Path(folder) / f"{name}.csv"
            of_pytorch, ours = (run(name, allocator, recorder, record) for allocator in ("native", "cachalot"))
            return of_pytorch, ours, record.read_text()

        with ThreadPoolExecutor(3) as pool:
            for name, (of_pytorch, ours, record) in zip(PROGRAMS, pool.map(both, PROGRAMS)):
                most, requests = asked(record)
                (out / f"{name}.csv.gz").write_bytes(gzip.compress(record.encode(), 9, mtime=0))
                held = [f"{of['held'] / most:.3f}" for of in (of_pytorch, ours)]
                seconds = [f"{of['seconds']:.1f}" for of in (of_pytorch, ours)]
                rows.append([name, requests, f"{most / MIB:.1f}", *held, ours["obtained"], ours["given_back"], *seconds])
                print(*rows[-1], flush=True)
                tables.write(out / "pytorch.csv", rows)


def run_one(name: str, allocator: str) -> None:
    """Runs a program in this process, and prints its figures."""
    if allocator == "cachalot":
        import cachalot_gpu.torch

        cachalot_gpu.torch.enable(cuda=False, pinned=True)
    begin = time.monotonic()
    PROGRAMS[name]()
    stats = torch.cuda.host_memory_stats()
    figures = {"held": held(), "seconds": time.monotonic() - begin}
    figures |= {"obtained": stats["num_host_alloc"], "given_back": stats["num_host_free"]}
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--program":
        run_one(sys.argv[2], sys.argv[3])
    else:
        main(Path(sys.argv[1]))
