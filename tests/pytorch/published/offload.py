"""torchtitan 2581: activations that are offloaded to one pinned slab and prefetched from it, reused by the next step.

    python offload.py ALLOCATOR [--dry]

Each step copies eight activations to pinned memory on one stream and back on another, and the next step reuses the
pinned memory. In the pull request the copies of a step did not wait for the prefetch of the step before, so gradients
were silently wrong.

Here the pinned memory is the allocator's: each buffer is freed while its copy is in flight, and the next step's buffer
may get it. Right: the allocator gives a buffer again only after the copy that reads it, so every step reads back its
own values; and the memory of the GPU is that of a few activations, not of all steps.
"""

from __future__ import annotations

from common import MIB, Run

STEPS, ACTIVATIONS, SIZE = 12, 8, 64 * MIB


def main() -> None:
    run = Run()
    torch = run.torch
    out, back = torch.cuda.Stream(), torch.cuda.Stream()
    compute = torch.cuda.current_stream()
    wrong = 0
    for step in range(STEPS):
        kept = []
        for number in range(ACTIVATIONS):
            activation = run.empty(SIZE)
            if not run.dry:
                activation.fill_((step * ACTIVATIONS + number) % 251)
            out.wait_stream(compute)
            with torch.cuda.stream(out):
                pinned = torch.empty(SIZE, dtype=torch.uint8, pin_memory=True)
                if not run.dry:
                    pinned.copy_(activation, non_blocking=True)
            # The copy still reads the activation.
            activation.record_stream(out)
            kept.append(pinned)
            del activation, pinned
            run.look()
        for number in reversed(range(ACTIVATIONS)):
            back.wait_stream(out)
            with torch.cuda.stream(back):
                activation = run.empty(SIZE)
                if not run.dry:
                    activation.copy_(kept.pop(), non_blocking=True)
            compute.wait_stream(back)
            activation.record_stream(compute)
            if not run.dry:
                wrong += int((activation != (step * ACTIVATIONS + number) % 251).any())
            del activation
            run.look()
    right = wrong == 0 and run.peak <= 2 * ACTIVATIONS * SIZE + 64 * MIB
    run.end("right" if right else f"{wrong} wrong values" if wrong else "activations of all steps are held")


if __name__ == "__main__":
    main()
