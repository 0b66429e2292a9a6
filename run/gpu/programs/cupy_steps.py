"""Computes with CuPy on two streams, and prints a digest. `none`: each array is the driver's own allocation."""

from __future__ import annotations

import hashlib
import sys
import time

import cupy


def main() -> None:
    """Computes and prints."""
    if sys.argv[1] == "none":
        cupy.cuda.set_allocator(None)
        cupy.cuda.set_pinned_memory_allocator(None)
    elif sys.argv[1] == "async":
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    random = cupy.random.RandomState(5)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    begin = time.perf_counter()
    found = hashlib.sha256()
    for step in range(120):
        size = 256 + 64 * (step % 5)
        left = random.standard_normal((size, size), dtype=cupy.float32)
        cupy.cuda.Device().synchronize()
        with streams[step % 2]:
            product = left @ left.T
            product = cupy.sort(product.ravel())[:4096]
            found.update(product.get().tobytes())
    print(f"seconds {time.perf_counter() - begin:.3f}", file=sys.stderr)
    print(f"cupy {found.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
