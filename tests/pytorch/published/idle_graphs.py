"""sglang 8538 and 35375: the memory of captured graphs is idle between replays, while sampling needs a buffer.

    python idle_graphs.py ALLOCATOR [--dry]

Eight graphs, one for each batch size, each with memory of its own of which most is free between replays. After every
replay, sampling needs 1 GiB for a moment. sglang lends wholly free segments of the graphs' pool by hand, and found
2.3 GB hidden by one block that lives.

Right: the peak is what the graphs hold and no more, and every replay writes what the first one wrote.
"""

from __future__ import annotations

from typing import Any

from common import GIB, MIB, Run

BATCHES = [8, 7, 6, 5, 4, 3, 2, 1]
ROUNDS = 8


def capture(run: Run, rows: Any) -> tuple[Any, Any]:
    """A graph of four layers with intermediate results, and its result."""
    torch = run.torch
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):
            if run.dry:
                rows = run.empty(rows.numel())
            else:
                rows = rows + 1
        result = run.empty(MIB) if run.dry else rows[:MIB].clone()
    return graph, result


def main() -> None:
    run = Run("expandable_segments:True")
    torch = run.torch
    if run.own is not None:
        run.own.lend_graphs()
    inputs = [run.empty(batch * 32 * MIB) for batch in BATCHES]
    if not run.dry:
        for each in inputs:
            each.zero_()
    captured = [capture(run, rows) for rows in inputs]
    # A graph lends its memory once it has been replayed.
    for graph, _ in captured:
        graph.replay()
    held = run.look()
    equal = True
    for _ in range(ROUNDS):
        for graph, result in captured:
            graph.replay()
            equal = equal and (run.dry or bool((result == 4).all()))
            sampling = [run.empty(GIB // 8) for _ in range(8)]
            if not run.dry:
                for each in sampling:
                    each.fill_(7)
            run.look()
            del sampling
    right = equal and run.peak <= held + 64 * MIB
    why = "sampling is held beside idle graphs" if equal else "WRONG RESULTS"
    run.end("right" if right else why, graphs_gib=round(held / GIB, 3))
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
