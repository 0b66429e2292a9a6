"""vLLM 48680 and 49151: weights of a mixture of experts are replaced by larger ones while the model loads.

    python loading.py ALLOCATOR [pool|tag] [streams] [graphs] [sleeping] [record=FILE] [--dry]

48 layers. Of each, the attention's weights stay, and the two weights of the experts are replaced, one after the other,
by weights that are 6 and 17 % larger. The thread measured 9.18 GiB loaded and 14.44 held after the conversion.

Right: what is held at the end is little more than what lives. PyTorch keeps each old weight as a hole that no larger
weight fits into, in segments and in expandable segments alike, so a copy of the experts stays behind.

`pool` loads into a `torch.cuda.MemPool`, and `tag` into a tag of cachalot. `streams` converts every second layer on
another stream, `graphs` captures four graphs before, and `sleeping` parks a model of 4 GiB before (cachalot). `record`
writes PyTorch's memory snapshot with the history, as in tests/traces/loading.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from common import GIB, MIB, Run

LAYERS = 48
# In MiB: before and after the conversion. 0: stays.
WEIGHTS = [(20, 0), (96, 96 * 1.06), (20, 0), (48, 48 * 1.17)]


def bytes_of(mib: float) -> int:
    """A size as a tensor has it."""
    return int(mib * MIB) // 512 * 512


def capture(run: Run) -> list[Any]:
    """Four graphs that stay, each with memory that is free between replays."""
    torch, graphs = run.torch, []
    for _ in range(4):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = [run.empty(64 * MIB) for _ in range(3)]
            del kept[1]
        graphs.append((graph, kept))
    return graphs


def place(run: Run, wanted: set[str]) -> Any:
    """Where the model is loaded."""
    if "pool" in wanted:
        run.pool = run.torch.cuda.MemPool()  # type: ignore[attr-defined]
        return run.torch.cuda.use_mem_pool(run.pool)  # type: ignore[attr-defined]
    return run.own.Tag("weights") if "tag" in wanted else contextlib.nullcontext()


def main() -> None:
    wanted = set(sys.argv[2:])
    run = Run()
    torch = run.torch
    if "sleeping" in wanted:
        other = run.own.Tag("other")
        with other:
            run.asleep = [run.empty(64 * MIB) for _ in range(64)]  # type: ignore[attr-defined]
        other.park(keep=False)
    graphs = capture(run) if "graphs" in wanted else []
    record = next((option.removeprefix("record=") for option in wanted if option.startswith("record=")), None)
    if record is not None:
        torch.cuda.memory._record_memory_history(max_entries=100_000, context=None, stacks="python")
    base = run.look()
    streams = [torch.cuda.current_stream()]
    if "streams" in wanted:
        streams.append(torch.cuda.Stream())
    weights: dict[tuple[int, int], Any] = {}
    with place(run, wanted):
        for layer in range(LAYERS):
            for number, (before, _) in enumerate(WEIGHTS):
                weights[layer, number] = run.empty(bytes_of(before))
        loaded = run.look() - base
        run.peak = run.look()
        for layer in range(LAYERS):
            with torch.cuda.stream(streams[layer % len(streams)]):
                for number, (_, after) in enumerate(WEIGHTS):
                    if after:
                        larger = run.empty(bytes_of(after))
                        run.copy(larger, weights[layer, number])
                        weights[layer, number] = larger
                        run.look()
    del larger
    if record is not None:
        torch.cuda.memory._dump_snapshot(record)
    live = sum(weight.numel() for weight in weights.values())
    held = run.look() - base
    answer = "right" if held <= 1.1 * live else "a copy of the experts stays"
    run.end(answer, loaded_gib=round(loaded / GIB, 3), live_gib=round(live / GIB, 3), held_gib=round(held / GIB, 3))
    del graphs


if __name__ == "__main__":
    main()
