"""vLLM 43951 and pytorch 159674: a pool strands the buffers of a conversion, and no call empties it while it is used.

    python stranded_pool.py ALLOCATOR [--dry]

Inside of `use_mem_pool`, buffers of 64 growing sizes are made and freed one after the other, as the conversion of one
expert after another does, beside weights that stay. Then `empty_cache()` is called in the pool, and the device must
have room for a request of the default pool. The thread found 71 GiB of a GPU in private pools at the failure.

With cachalot the pool is that of a tag, whose call is `trim`.

Right: the buffers use each other's memory, so the pool holds its weights and one or two buffers; and after the
weights are all, the memory that is free in the pool goes back by a call.
"""

from __future__ import annotations

from common import GIB, MIB, Run

EXPERTS = 64


def main() -> None:
    run = Run()
    torch = run.torch
    tag = run.own.Tag("conversion") if run.own is not None else None
    pool = torch.cuda.MemPool()
    kept = []
    with tag if tag is not None else torch.cuda.use_mem_pool(pool):
        for expert in range(EXPERTS):
            buffer = run.empty((40 + 4 * expert) * MIB)
            kept.append(run.empty(24 * MIB))
            run.copy(kept[-1], buffer)
            del buffer
            run.look()
        most = run.look()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        after_call = run.look()
        if tag is not None:
            tag.trim()
    emptied = run.look()
    live = sum(weight.numel() for weight in kept)
    answer = "right" if most <= live + 600 * MIB and emptied <= 1.1 * live else "buffers stay in the pool"
    figures = {"live": live, "most": most, "after_empty_cache": after_call, "after_trim": emptied}
    run.end(answer, **{f"{name}_gib": round(value / GIB, 3) for name, value in figures.items()})


if __name__ == "__main__":
    main()
