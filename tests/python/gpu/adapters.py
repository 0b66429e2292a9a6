"""The adapters on a GPU: memory, stream order, one pool for all libraries in phases, and what a request costs.

    pip install --target SITE ./python
    PYTHONPATH=SITE python tests/python/gpu/adapters.py OUT.csv [LIBRARY...]

LIBRARY: torch, cupy, rmm, numba, cuda_core, phases; all that are installed by default. Each is a process of its own. A
library that is missing is a line `skipped`. The exit status is 1 if a check fails. The figures go to OUT.csv: check,
name, value, unit.
"""

from __future__ import annotations

import csv
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

MIB = 1 << 20
ROUNDS = 11
PAIRS = 2000

SPIN = (
    r'extern "C" __global__ void spin(unsigned char* to, long long n, unsigned char value) {'
    r" long long begin = clock64(); while (clock64() - begin < 20000000) {}"
    r" for (long long i = threadIdx.x; i < n; i += blockDim.x) to[i] = value; }"
)
"""A kernel that waits some milliseconds, and then writes a value to each byte."""

NEEDS = {
    "torch": "torch",
    "cupy": "cupy",
    "rmm": "rmm",
    "numba": "numba_cuda",
    "cuda_core": "cuda.core",
    "phases": "torch",
}
"""The checks, each with the module that it needs."""


def installed(module: str) -> bool:
    """Whether a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def figure(name: str, value: float, unit: str) -> None:
    """Prints a figure for the table."""
    print(f"figure\t{name}\t{value:.3f}\t{unit}", flush=True)


def pair(name: str, act: Callable[[], object]) -> None:
    """Measures a request with its free: the median of the rounds, after a warm-up."""
    for _ in range(PAIRS):
        act()
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(PAIRS):
            act()
        times.append((time.perf_counter() - begin) / PAIRS * 1e6)
    figure(name, sorted(times)[ROUNDS // 2], "us a pair")


def refused(act: Callable[[], object]) -> None:
    """Expects that a request beyond the device fails as a MemoryError."""
    try:
        act()
    except MemoryError:
        return
    raise AssertionError("a request of 64 TiB was served")


def cupy() -> None:
    """CuPy: contents, the order of streams, and a pair beside CuPy's own pool."""
    import cupy

    import cachalot_gpu.cupy

    size = 4 * MIB
    own = cupy.cuda.MemoryPool()
    pair("cupy, own pool, 4 KiB", lambda: own.malloc(4096))
    assert cachalot_gpu.cupy.enable()
    pair("cupy, cachalot, 4 KiB", lambda: cachalot_gpu.cupy.allocate(4096))
    with cupy.cuda.using_allocator(own.malloc):
        pair("cupy, own pool, empty array", lambda: cupy.empty(1024, "u1"))
    pair("cupy, cachalot, empty array", lambda: cupy.empty(1024, "u1"))

    held = lambda: cachalot_gpu.usage()["cupy"][0]
    before = held().blocks
    array = cupy.arange(1000, dtype="f8")
    view = array[10:]
    assert int(view.sum()) == 499455
    del array
    assert held().blocks > before, "a view keeps the block"
    del view
    refused(lambda: cupy.empty(1 << 46, "u1"))

    # Freed while another stream is current, which still writes: the memory must not serve the first stream before.
    one, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    spin = cupy.RawKernel(SPIN, "spin")
    wrong = same = 0
    for _ in range(50):
        with one:
            array = cupy.empty(size, "u1")
        first = array.data.ptr
        with other:
            spin((1,), (256,), (array, size, 1))
            del array
        with one:
            again = cupy.empty(size, "u1")
            same += again.data.ptr == first
            again.fill(2)
        cupy.cuda.Device().synchronize()
        wrong += not bool((again == 2).all())
        del again
    figure("cupy, wrong rounds of a free under another stream", wrong, "of 50")
    figure("cupy, blocks reused before the other stream was done", same, "of 50")
    assert wrong == 0

    # The same with record_use, where the first stream drops the array itself.
    for _ in range(50):
        with one:
            array = cupy.empty(size, "u1")
        with other:
            spin((1,), (256,), (array, size, 1))
        cachalot_gpu.record_use(array, other)
        with one:
            del array
            again = cupy.empty(size, "u1")
            again.fill(2)
        cupy.cuda.Device().synchronize()
        assert bool((again == 2).all())
        del again
    cupy.get_default_memory_pool().free_all_blocks()


def rmm() -> None:
    """RMM: buffers, streams, an adaptor, and a pair beside RMM's own pool."""
    import rmm
    from rmm.pylibrmm.stream import Stream

    import cachalot_gpu.rmm

    own = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=256 * MIB)
    rmm.mr.set_current_device_resource(own)
    pair("rmm, own pool, 4 KiB", lambda: rmm.DeviceBuffer(size=4096))
    rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())
    pair("rmm, cudaMallocAsync, 4 KiB", lambda: rmm.DeviceBuffer(size=4096))
    assert cachalot_gpu.rmm.enable()
    pair("rmm, cachalot, 4 KiB", lambda: rmm.DeviceBuffer(size=4096))
    held = lambda: cachalot_gpu.usage()["rmm"][0]
    stream = Stream()
    buffer = rmm.DeviceBuffer.to_device(bytes(range(256)) * 4096, stream)
    assert buffer.copy_to_host(stream=stream)[:256].tobytes() == bytes(range(256))
    assert (held().bytes, held().blocks) == (MIB, 1)
    del buffer
    assert held().blocks == 0
    refused(lambda: rmm.DeviceBuffer(size=1 << 46))
    counted = rmm.mr.StatisticsResourceAdaptor(cachalot_gpu.rmm.resource(0))
    rmm.mr.set_current_device_resource(counted)
    buffer = rmm.DeviceBuffer(size=1000)
    assert held().blocks == 1 and counted.allocation_counts.current_count == 1
    del buffer
    if installed("cupy"):
        rmm_order(cachalot_gpu.rmm.resource(0))


def rmm_order(resource: object) -> None:
    """Deallocations on a stream other than that of the allocation, which still writes."""
    import cupy
    from rmm.pylibrmm.stream import Stream

    size, wrong = 4 * MIB, 0
    one, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    spin = cupy.RawKernel(SPIN, "spin")
    for _ in range(50):
        first = resource.allocate(size, Stream(one))
        with other:
            spin((1,), (256,), (first, size, 1))
        resource.deallocate(first, size, Stream(other))
        again = resource.allocate(size, Stream(one))
        memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(again, size, None), 0)
        memory.memset_async(2, size, one)
        cupy.cuda.Device().synchronize()
        wrong += not bool((cupy.ndarray(size, "u1", memory) == 2).all())
        resource.deallocate(again, size, Stream(one))
    figure("rmm, wrong rounds of a deallocation on another stream", wrong, "of 50")
    assert wrong == 0


def numba() -> None:
    """Numba: arrays, the barrier of a free, and a pair beside Numba's own manager."""
    if "--plain" in sys.argv:
        from numba import cuda

        pair("numba, own manager, 4 KiB", lambda: cuda.current_context().memalloc(4096))
        return
    subprocess.run([sys.executable, __file__, "--one", "numba", "--plain"], check=True)
    import numpy

    import cachalot_gpu.numba

    assert cachalot_gpu.numba.enable()
    from numba import cuda
    from numba.cuda.cudadrv.driver import driver

    context = cuda.current_context()
    pair("numba, cachalot, 4 KiB", lambda: context.memalloc(4096))
    array = cuda.to_device(numpy.arange(1000.0))
    assert array.copy_to_host().sum() == 499500
    del array
    refused(lambda: cuda.device_array(1 << 46, "u1"))
    # Work of one stream is still running when its memory serves the other.
    one, other = cuda.stream(), cuda.stream()
    manager, size, wrong, same = context.memory_manager, 256 * MIB, 0, 0
    for _ in range(20):
        first = manager.memalloc(size)
        address = int(first.handle)
        for _ in range(20):
            driver.cuMemsetD8Async(address, 1, size, one.handle)
        del first
        second = manager.memalloc(size)
        same += int(second.handle) == address
        driver.cuMemsetD8Async(int(second.handle), 2, 4096, other.handle)
        cuda.synchronize()
        check = numpy.empty(4096, "u1")
        driver.cuMemcpyDtoH(check.ctypes.data, int(second.handle), 4096)
        wrong += not (check == 2).all()
        del second
    figure("numba, wrong rounds", wrong, f"of {same}")
    assert wrong == 0 and same == 20


def cuda_core() -> None:
    """cuda.core: buffers, and a pair beside its own pool."""
    from cuda.core import Device

    import cachalot_gpu.cuda_core

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    pair("cuda.core, own pool, 4 KiB", lambda: device.allocate(4096, stream=stream).close())
    assert cachalot_gpu.cuda_core.enable()
    pair("cuda.core, cachalot, 4 KiB", lambda: device.allocate(4096, stream=stream).close())
    held = lambda: cachalot_gpu.usage()["cuda_core"][0]
    buffer = device.allocate(MIB, stream=stream)
    assert held().bytes == MIB
    buffer.fill(7, stream=stream)
    stream.sync()
    buffer.close(device.create_stream())
    assert held().blocks == 0
    refused(lambda: device.allocate(1 << 46, stream=stream))


def torch() -> None:
    """PyTorch beside the others: one pool, and arrays that go over by DLPack."""
    import torch

    import cachalot_gpu

    print("enabled", cachalot_gpu.enable_all("policy:stitched"))
    pair("torch, cachalot, 4 KiB", lambda: torch.empty(4096, dtype=torch.uint8, device="cuda"))
    if installed("cupy"):
        import cupy

        tensor = torch.arange(1000, device="cuda")
        array = cupy.from_dlpack(tensor)
        del tensor
        torch.empty(1000, dtype=torch.int64, device="cuda").fill_(7)
        assert int(array.sum()) == 499500, "the array keeps the tensor's block"
        back = torch.from_dlpack(cupy.arange(1000))
        cupy.full(1000, 7, "i8")
        assert int(back.sum()) == 499500


def phases() -> None:
    """One process in phases: each library in turn needs most of the memory. The peak of the card beside the most that
    was live at one time."""
    import torch

    import cachalot_gpu
    import cachalot_gpu.torch

    enabled = cachalot_gpu.enable_all("policy:stitched")
    torch.cuda.init()
    torch.empty(1, device="cuda")
    torch.cuda.synchronize()
    free_before = torch.cuda.mem_get_info()[0]
    least_free, most_live = free_before, 0

    def look(live: int) -> None:
        nonlocal least_free, most_live
        torch.cuda.synchronize()
        least_free, most_live = min(least_free, torch.cuda.mem_get_info()[0]), max(most_live, live)

    def in_turn(name: str, allocate: Callable[[int], object]) -> None:
        # Sizes of no common shape, in total 8 GiB.
        sizes, held, live = [], [], 0
        while sum(sizes) < 8 << 30:
            sizes.append((37 + 61 * len(sizes) % 467) * MIB)
        for size in sizes:
            held.append(allocate(size))
            live += size
        look(live)
        figure(f"phases, {name}, live", live / MIB, "MiB")

    in_turn("torch", lambda size: torch.empty(size, dtype=torch.uint8, device="cuda"))
    if "cupy" in enabled:
        import cupy

        in_turn("cupy", lambda size: cupy.empty(size, "u1"))
    if "numba" in enabled:
        from numba import cuda

        in_turn("numba", lambda size: cuda.current_context().memalloc(size))
    if "rmm" in enabled:
        import rmm

        in_turn("rmm", lambda size: rmm.DeviceBuffer(size=size))
    if "cuda_core" in enabled:
        from cuda.core import Device

        device = Device(0)
        device.set_current()
        stream = device.create_stream()
        in_turn("cuda_core", lambda size: device.allocate(size, stream=stream))
    in_turn("torch again", lambda size: torch.empty(size, dtype=torch.uint8, device="cuda"))
    peak = free_before - least_free
    figure("phases, peak of the card", peak / MIB, "MiB")
    figure("phases, peak beside the most live", peak / most_live, "times")
    assert peak <= 1.03 * most_live, (peak, most_live)


def main() -> int:
    """Runs each check in a process, and writes the figures."""
    out, names = Path(sys.argv[1]), sys.argv[2:] or list(NEEDS)
    rows, status = [], 0
    for name in names:
        if not installed(NEEDS[name]):
            print(f"skipped: {name} (not installed)")
            continue
        command = [sys.executable, __file__, "--one", name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        print(f"-- {name}: exit status {done.returncode}\n{done.stdout}{done.stderr}", flush=True)
        status |= done.returncode != 0
        rows.append([name, "exit status", done.returncode, ""])
        rows += [[name, *line.split("\t")[1:]] for line in done.stdout.splitlines() if line.startswith("figure\t")]
    with out.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["check", "name", "value", "unit"], *rows])
    return int(status)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--one":
        globals()[sys.argv[2]]()
    else:
        sys.exit(main())
