"""A serving program's cache of keys and values, kept in five ways: the memory it holds, and what its growth takes.

    pip install --target SITE ./python
    PYTHONPATH=SITE python tests/python/gpu/serving.py OUT [--requests FILE] [--ways WAY,...]
        [--layers COUNT] [--former SITE] [--commit TEXT]

Requests arrive, their prompts take memory at once, and each answer grows by a token in every step, until the request
ends. A step writes the newest token of each request, and the end of a request compares what was written. The requests
come from `serving_requests.csv`, or from FILE, which has the same columns or those of Azure's LLM inference traces
(TIMESTAMP, ContextTokens, GeneratedTokens; the first 480 requests count).

* `elastic`: cachalot's elastic ranges, one for each place of a request (docs/elastic.md), under `policy:stitched`.
* `elastic_upkeep`: likewise, and a thread of the library maps pages ahead (`maintain_every`).
* `elastic_two`: likewise, and a range grows by two pages at least, where `elastic` takes a page as soon as one is full.
* `doubling`: PyTorch's allocator with expandable segments; a tensor for each request, which doubles when it is full.
* `exact`: likewise, and a tensor of the exact length for each token, as `torch.cat` makes it.
* `kvcached`: kvcached's manager of blocks of 16 tokens, with its pages mapped ahead by a thread, as it is by default.
* `kvcached_direct`: likewise, and each page is mapped when it is needed (`KVCACHED_PAGE_PREALLOC_ENABLED=false`).

Each way runs in a process of its own, and serves the requests twice: the second time, memory that the
first time has left to the way's pool is there. A way whose library is missing is a line `skipped`. With `--former`,
the ways `elastic` and `elastic_two` also run with another installation of cachalot, before the same way with this one.
The exit status is 1 if a way fails, or finds other contents than it has written. The driver's calls for the elastic
ranges are written to the standard error.

`serving.py --draw` writes `serving_requests.csv`. Its lengths are drawn from the quantiles of the conversations in
Azure's LLM inference trace of 2023 (Patel et al., Splitwise, ISCA 2024): `PROMPTS` and `ANSWERS`. The rate of arrivals
changes between `RATES` requests a second every ten seconds, so that the cache grows and shrinks.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple, Protocol

HERE = Path(__file__).resolve().parent
REQUESTS = HERE / "serving_requests.csv"
WAYS = ("elastic", "elastic_upkeep", "elastic_two", "doubling", "exact", "kvcached", "kvcached_direct")
COUNT = 480
"""Requests of a run."""
PLACES = 64
"""Requests that run at one time. Others wait."""
HEADS, SIZE, BLOCK = 8, 128, 16
"""Heads of a layer, their size, and the tokens of a block or of a rounded length."""
LONGEST = 16384
"""The most tokens of a request."""
LONGEST_WAY = 150
"""The most seconds of a way."""
FORMER = ("elastic", "elastic_two")
"""The ways that also run with a former installation."""
UPKEEP_SECONDS, UPKEEP_US = 0.001, 1000
"""The pause between two rounds of upkeep, and the time of the driver in a round."""
STEP_SECONDS = 0.025
"""The time of a step, which says at which step a request arrives."""
COLUMNS = (
    "way",
    "most live MiB",
    "most held MiB",
    "held in vain, mean %",
    "peak of the card MiB",
    "peak ÷ most live",
    "growths",
    "pages",
    "µs a page, median",
    "p99",
    "mean",
    "tokens, millions a second",
)
DIGITS = (0, 0, 1, 0, 3, 0, 0, 1, 1, 1, 2)
"""The digits behind the point, of each figure in a row."""
PAGE = 2 << 20
MIB = 1 << 20
SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
PROMPTS = (8, 181, 396, 1020, 1189, 2735, 4142, 8192)
ANSWERS = (2, 41, 85, 129, 395, 424, 601, 1000)
"""Tokens at the shares of `SHARES`."""
RATES = (3.0, 11.0)


class Request(NamedTuple):
    """A request: when it arrives, and its lengths in tokens."""

    step: int
    prompt: int
    answer: int


class Cache(Protocol):
    """A way to keep the tokens of `PLACES` requests."""

    def grow(self, place: int, tokens: int) -> int:
        """Gives a request memory for `tokens` tokens. Returns the bytes that it has more than before."""

    def end(self, place: int) -> None:
        """Ends a request."""

    def held(self) -> int:
        """Returns the bytes that the cache keeps from others."""

    def token(self, place: int, token: int) -> Any:
        """Returns the last layer's values of a token, to write and to read."""


class Elastic:
    """Elastic ranges of cachalot."""

    def __init__(self, layers: int, pages: int, upkeep: bool) -> None:
        import cachalot_gpu.torch
        import torch

        if upkeep:
            cachalot_gpu.torch.maintain_every(UPKEEP_SECONDS, UPKEEP_US)
        shape = (LONGEST, layers, 2, HEADS, SIZE)
        self.ranges = [cachalot_gpu.torch.ElasticTensor(shape, torch.bfloat16) for _ in range(PLACES)]
        self.views: list[Any] = [None] * PLACES
        self.full, self.pages = [0] * PLACES, pages
        self.row = layers * 2 * HEADS * SIZE * 2

    def grow(self, place: int, tokens: int) -> int:
        if tokens <= self.full[place]:
            return 0
        range_, before = self.ranges[place], self.ranges[place].committed_bytes
        page = range_.page_bytes
        # To the end of a page, so that the next call comes when this memory is full.
        whole = max(-(-tokens * self.row // page), before // page + self.pages)
        self.full[place] = min(whole * page // self.row, LONGEST)
        self.views[place] = range_.resize(self.full[place])
        return range_.committed_bytes - before

    def end(self, place: int) -> None:
        self.ranges[place].resize(0)
        self.full[place] = 0

    def held(self) -> int:
        return sum(range_.committed_bytes for range_ in self.ranges)

    def token(self, place: int, token: int) -> Any:
        return self.views[place][token, -1, 1]

    def calls(self) -> dict[str, int]:
        """Returns the calls of the driver so far, and their microseconds."""
        import cachalot_gpu.torch

        counts = cachalot_gpu.torch.statistics()
        return {name: count for name, count in counts.items() if count and name.endswith((".calls", ".us"))}


class Tensors:
    """A tensor for each request, from PyTorch's allocator."""

    def __init__(self, layers: int, doubling: bool) -> None:
        import torch

        self.torch = torch
        self.tensors: list[Any] = [None] * PLACES
        self.shape, self.doubling = (layers, 2, HEADS, SIZE), doubling

    def grow(self, place: int, tokens: int) -> int:
        old = self.tensors[place]
        if old is not None and tokens <= len(old):
            return 0
        rows = max(-(-tokens // BLOCK) * BLOCK, 2 * len(old) if old is not None else 0) if self.doubling else tokens
        new = self.torch.empty((rows, *self.shape), dtype=self.torch.bfloat16, device="cuda")
        self.tensors[place] = new
        if old is None:
            return new.nbytes
        new[: len(old)].copy_(old)
        return new.nbytes - old.nbytes

    def end(self, place: int) -> None:
        self.tensors[place] = None

    def held(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors if tensor is not None)

    def token(self, place: int, token: int) -> Any:
        return self.tensors[place][token, -1, 1]


class KvCached:
    """Blocks of kvcached, whose pages hold the same tokens of all layers."""

    def __init__(self, layers: int) -> None:
        import torch
        from kvcached.integration.vllm import interfaces

        interfaces.init_kvcached(tp_rank=0, world_size=1, is_worker=True, async_sched=False)
        self.close = interfaces.shutdown_kvcached
        most = torch.cuda.get_device_properties(0).total_memory // 2 // (layers * 2 * HEADS * SIZE * 2 * BLOCK)
        shape = (2, most, BLOCK, HEADS, SIZE)
        self.tensors = interfaces.alloc_kv_cache(shape, BLOCK, torch.bfloat16, "cuda:0", layers)
        self.manager = interfaces.get_kv_cache_manager(most, BLOCK, HEADS * SIZE * 2, layers)
        self.blocks: list[list[int]] = [[] for _ in range(PLACES)]
        self.pages, self.bundle = self.manager.page_allocator, layers * 2 * self.manager.page_size
        # The first request waits until the manager is ready.
        self.manager.free(self.manager.alloc(1))

    def grow(self, place: int, tokens: int) -> int:
        wanted = -(-tokens // BLOCK) - len(self.blocks[place])
        if wanted <= 0:
            return 0
        before = self.pages.get_num_inuse_pages()
        found = self.manager.alloc(wanted)
        if found is None:
            raise MemoryError(f"{wanted} blocks")
        self.blocks[place] += found
        return (self.pages.get_num_inuse_pages() - before) * self.bundle

    def end(self, place: int) -> None:
        self.manager.free(self.blocks[place])
        self.blocks[place] = []

    def held(self) -> int:
        return (self.pages.get_num_inuse_pages() + self.pages.get_num_reserved_pages()) * self.bundle

    def token(self, place: int, token: int) -> Any:
        return self.tensors[-1][1, self.blocks[place][token // BLOCK], token % BLOCK]


def cache(way: str, layers: int) -> Cache:
    """Returns the cache of a way."""
    if way.startswith("elastic"):
        return Elastic(layers, 2 if way == "elastic_two" else 1, way == "elastic_upkeep")
    return KvCached(layers) if way.startswith("kvcached") else Tensors(layers, way == "doubling")


class Figures:
    """What a run has measured."""

    def __init__(self, row: int) -> None:
        self.row = row
        self.tokens = self.most_tokens = self.most_held = self.most_used = self.steps = 0
        self.took_ns = self.growth_ns = self.growth_bytes = 0
        self.wasted = 0.0
        self.growths: list[tuple[int, int]] = []
        """The bytes and the time of each growth."""

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Counts the time of an operation on the cache."""
        began = time.perf_counter_ns()
        yield
        self.took_ns += time.perf_counter_ns() - began

    def grown(self, grown: int, took_ns: int) -> None:
        """Notes a call that may have taken memory."""
        self.took_ns += took_ns
        if grown > 0:
            self.growths.append((grown, took_ns))

    def step(self, tokens: int, held: int, used: int) -> None:
        """Notes the state after a step: tokens of running requests, bytes of the cache, and bytes of the card."""
        self.most_tokens, self.most_held = max(self.most_tokens, tokens), max(self.most_held, held)
        self.most_used = max(self.most_used, used)
        if tokens:
            self.steps += 1
            self.wasted += 1 - tokens * self.row / held

    def summary(self) -> dict[str, float]:
        """Returns the figures of the table."""
        pages = sorted(took_ns / 1e3 / max(1, grown / PAGE) for grown, took_ns in self.growths)
        grown = sum(grown for grown, _ in self.growths)
        live = self.most_tokens * self.row
        return {
            "live": live / MIB,
            "held": self.most_held / MIB,
            "wasted": 100 * self.wasted / max(1, self.steps),
            "used": self.most_used / MIB,
            "ratio": self.most_used / live,
            "growths": len(pages),
            "pages": grown / PAGE,
            "median": statistics.median(pages),
            "p99": pages[int(0.99 * len(pages))],
            "mean": sum(took_ns for _, took_ns in self.growths) / 1e3 / (grown / PAGE),
            "rate": self.tokens / (self.took_ns / 1e9) / 1e6,
        }


def start(way: str, layers: int) -> tuple[Cache, Any, int]:
    """Returns the cache of a way, a pattern for each of 256 tokens, and the free bytes of the card before the cache."""
    import torch

    if way.startswith("elastic"):
        import cachalot_gpu.torch

        # Before the first use of CUDA.
        cachalot_gpu.torch.enable("policy:stitched")
    patterns = torch.arange(256).repeat_interleave(HEADS * SIZE).to(torch.bfloat16).view(256, HEADS, SIZE).cuda()
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    return cache(way, layers), patterns, free


def serve(kept: Cache, requests: list[Request], patterns: Any, free: int, row: int) -> dict[str, float]:
    """Serves the requests once. `row` is the bytes of a token. Returns the figures.

    Raises:
        ValueError: a token has other contents than were written.
    """
    import torch

    figures = Figures(row)
    waiting, running, places = deque(requests), dict[int, list[int]](), deque(range(PLACES))
    step, total = 0, 0
    while waiting or running:
        while waiting and waiting[0].step <= step and places:
            request, place = waiting.popleft(), places.popleft()
            running[place] = [request.prompt, request.prompt + request.answer]
            total += request.prompt
            grow(kept, figures, place, request.prompt)
            kept.token(place, 0).copy_(patterns[place])
        for place, (tokens, _) in running.items():
            grow(kept, figures, place, tokens + 1)
            kept.token(place, tokens).copy_(patterns[(place + tokens) % 256])
            running[place][0] += 1
        total += len(running)
        figures.step(total, kept.held(), free - torch.cuda.mem_get_info()[0])
        for place in [place for place, (tokens, last) in running.items() if tokens >= last]:
            tokens = running.pop(place)[1]
            check(kept, place, tokens, patterns)
            with figures.timed():
                kept.end(place)
            places.append(place)
            figures.tokens, total = figures.tokens + tokens, total - tokens
        step += 1
    torch.cuda.synchronize()
    return figures.summary()


def grow(kept: Cache, figures: Figures, place: int, tokens: int) -> None:
    """Gives a request memory, and notes the time."""
    began = time.perf_counter_ns()
    grown = kept.grow(place, tokens)
    figures.grown(grown, time.perf_counter_ns() - began)


def check(kept: Cache, place: int, tokens: int, patterns: Any) -> None:
    """Compares the first and the last token of a request with what was written."""
    for token, pattern in ((0, place), (tokens - 1, (place + tokens - 1) % 256)):
        if not kept.token(place, token).cpu().equal(patterns[pattern].cpu()):
            raise ValueError(f"place {place}, token {token} of {tokens}: other contents than were written")


def read(path: Path) -> list[Request]:
    """Reads requests, of either form."""
    with path.open(newline="") as file:
        rows = [row for row, _ in zip(csv.DictReader(file), range(COUNT))]
    if "TIMESTAMP" in rows[0]:
        times = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
        lengths = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in rows]
    else:
        times = [float(row["seconds"]) for row in rows]
        lengths = [(int(row["prompt"]), int(row["answer"])) for row in rows]
    steps = [int((second - times[0]) / STEP_SECONDS) for second in times]
    return [Request(step, max(1, prompt), max(1, answer)) for step, (prompt, answer) in zip(steps, lengths)]


def draw() -> None:
    """Writes the requests of the repository. The same numbers come with every version of Python."""
    source = random.Random(35)

    def length(tokens: tuple[int, ...]) -> int:
        share = source.random()
        part = next(part for part in range(1, len(SHARES)) if share <= SHARES[part])
        low, high = tokens[part - 1], tokens[part]
        return round(low + (high - low) * (share - SHARES[part - 1]) / (SHARES[part] - SHARES[part - 1]))

    second = 0.0
    with REQUESTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["seconds", "prompt", "answer"])
        for _ in range(COUNT):
            second += source.expovariate(RATES[int(second / 10) % len(RATES)])
            writer.writerow([f"{second:.3f}", length(PROMPTS), length(ANSWERS)])


def settings(way: str, former: Path | None) -> dict[str, str]:
    """Returns the environment of a way, with a former installation if there is one."""
    if former:
        return {"PYTHONPATH": str(former)}
    if way in ("doubling", "exact"):
        return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    return {"KVCACHED_PAGE_PREALLOC_ENABLED": "false"} if way == "kvcached_direct" else {}


def machine() -> str:
    """Returns the card, the driver and the host, in words."""
    import torch

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
    except FileNotFoundError:
        driver = []
    host = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return (
        f"{torch.cuda.get_device_name(0)}, driver {driver[0] if driver else 'unknown'}; "
        f"host: {host[0] if host else 'unknown'}, {os.cpu_count()} processors"
    )


def table(rows: dict[str, dict[str, float]]) -> list[list[str]]:
    """Returns the table of the results."""
    figures = ([f"{row[name]:.{digits}f}" for name, digits in zip(row, DIGITS)] for row in rows.values())
    return [list(COLUMNS), *([way, *of] for way, of in zip(rows, figures))]


def write(path: Path, rows: list[list[str]]) -> None:
    """Writes a table as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def main() -> int:
    """Serves the requests in each way, in processes, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--requests", type=Path, default=REQUESTS)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--former", type=Path, help="the folder of another installation of cachalot")
    parser.add_argument("--commit", default="unknown", help="for the page")
    parser.add_argument("--draw", action="store_true", help="write the requests of the repository")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.draw:
        draw()
        return 0
    requests = read(asked.requests)
    if asked.way:
        kept, patterns, free = start(asked.way, asked.layers)
        row = asked.layers * 2 * HEADS * SIZE * 2
        found = []
        for _ in range(2):
            found.append(serve(kept, requests, patterns, free, row))
            if isinstance(kept, Elastic):
                print(f"{asked.way}: calls of the driver so far: {kept.calls()}", file=sys.stderr)
        print(json.dumps(found))
        return 0
    if asked.out is None:
        parser.error("OUT is missing")
    rows, status = {}, 0
    sites = (asked.former, None) if asked.former else (None,)
    ways = asked.ways.split(",")
    for way, former in ((way, site) for way in ways for site in sites if site is None or way in FORMER):
        name = f"{way}, former" if former else way
        if way.startswith("kvcached") and importlib.util.find_spec("kvcached") is None:
            print(f"skipped: {way} (kvcached is not installed)")
            continue
        command = [sys.executable, __file__, "--way", way, "--requests", str(asked.requests)]
        command += ["--layers", str(asked.layers)]
        began = time.monotonic()
        try:
            done = subprocess.run(
                command,
                env=os.environ | settings(way, former),
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                timeout=LONGEST_WAY,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"{name}: failed: {error}", flush=True)
            status = 1
            continue
        # Libraries may write to the standard output as well.
        found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('[{"live"')))
        rows |= {name: found[0], f"{name}, again": found[1]}
        print(f"{name}: {time.monotonic() - began:.1f} s, {found}", flush=True)
        asked.out.mkdir(parents=True, exist_ok=True)
        write(asked.out / "head.csv", conditions(asked, requests))
        write(asked.out / "ways.csv", table(rows))
    return status


def conditions(asked: argparse.Namespace, requests: list[Request]) -> list[list[str]]:
    """Returns the head of the page."""
    import torch

    tokens = sum(request.prompt + request.answer for request in requests)
    token = asked.layers * 2 * HEADS * SIZE * 2
    gpu, host = machine().split("; host: ")
    served = f"{len(requests)} of `{asked.requests.name}`, {tokens:,} tokens; {asked.layers} layers, {token >> 10} KiB a token"
    return [
        ["what", "is"],
        ["GPU", gpu],
        ["host", host],
        ["date", f"{datetime.now(timezone.utc):%Y-%m-%d}"],
        ["commit", asked.commit],
        ["PyTorch", torch.__version__],
        ["how", "`PYTHONPATH=SITE python tests/python/gpu/serving.py OUT`"],
        ["requests", served],
    ]


if __name__ == "__main__":
    sys.exit(main())
