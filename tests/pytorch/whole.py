"""What works under PyTorch's own allocator works with cachalot in its place, with the same figures.

    python whole.py OUT.csv

Each case runs in processes of its own: under PyTorch's allocator, under cachalot, and under
cachalot as a plug-in (``CUDAPluggableAllocator``), which shows what a plug-in lacks. The figures of
the first two are equal. ``python whole.py --case NAME native|whole|plugin`` runs one.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Callable

import torch

import tables

MIB = 1 << 20
Figures = Any
CASES: dict[str, Callable[[], Figures]] = {}
ENVIRONMENT: dict[str, dict[str, str]] = {}
WORKS_AS_A_PLUGIN = {"settings of the environment"}
"""The cases that a plug-in passes, too."""


def case(name: str, **environment: str) -> Callable[[Callable[[], Figures]], Callable[[], Figures]]:
    """Adds a case, which runs with these environment variables."""

    def add(function: Callable[[], Figures]) -> Callable[[], Figures]:
        CASES[name], ENVIRONMENT[name] = function, environment
        return function

    return add


def block(size: int) -> torch.Tensor:
    """Returns a tensor of so many bytes."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def model() -> torch.nn.Module:
    """Returns a model whose weights are the same in every process."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda()


def shape(segments: list[dict[str, Any]]) -> Figures:
    """Returns what does not depend on addresses."""
    return [
        [
            segment["segment_type"],
            segment["total_size"],
            segment["is_expandable"],
            [[piece["size"], piece["requested_size"], piece["state"]] for piece in segment["blocks"]],
        ]
        for segment in sorted(segments, key=lambda segment: segment["address"])
    ]


@case("memory_stats")
def memory_stats() -> Figures:
    figures = []
    kept = [block(size) for size in (1000, 2 * MIB, 3 * MIB + 1, 30 * MIB, 512)]
    figures.append(dict(torch.cuda.memory_stats()))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        kept.append(block(5 * MIB))
    del kept[1:4]
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    kept.append(block(20 * MIB))
    torch.cuda.empty_cache()
    figures.append(dict(torch.cuda.memory_stats()))
    figures.append([torch.cuda.memory_allocated(), torch.cuda.max_memory_reserved()])
    figures.append(torch.cuda.memory_summary())
    if hasattr(torch, "accelerator"):
        torch.accelerator.reset_peak_memory_stats()
        figures.append(dict(torch.accelerator.memory_stats()))
    return figures


@case("history with Python stacks")
def python_history() -> Figures:
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=1000)

    def make() -> torch.Tensor:
        return block(3 * MIB)

    first = make()
    del first
    kept = make()
    side = torch.cuda.Stream()
    used = block(1000)
    used.record_stream(side)
    del used
    torch.cuda.synchronize()
    block(100)
    whole_segment = block(30 * MIB)
    snapshot = torch.cuda.memory._snapshot()
    trace = snapshot["device_traces"][torch.cuda.current_device()]
    segments = [piece for segment in snapshot["segments"] for piece in segment["blocks"]]
    named = [any(frame["name"] == "make" for frame in piece.get("frames", [])) for piece in segments]
    with_stack = [[segment["total_size"], bool(segment.get("frames"))] for segment in snapshot["segments"]]
    torch.cuda.memory._record_memory_history(None)
    after = torch.cuda.memory._snapshot()["device_traces"]
    events = [
        [event["action"], event["size"], any(frame["name"] == "make" for frame in event.get("frames", []))]
        for event in trace
    ]
    times = [event["time_us"] for event in trace]
    live = kept.numel() + whole_segment.numel()
    return [events, named, sorted(with_stack), times == sorted(times), sum(map(len, after)), live]


@case("history with C++ stacks, in the viewer")
def cpp_history() -> Figures:
    from torch.cuda import _memory_viz

    torch.cuda.memory._record_memory_history(stacks="all", max_entries=1000)
    kept = [block(size) for size in (1000, 3 * MIB)]
    with tempfile.NamedTemporaryFile() as file:
        torch.cuda.memory._dump_snapshot(file.name)
        snapshot = pickle.loads(Path(file.name).read_bytes())
    trace = snapshot["device_traces"][torch.cuda.current_device()]
    frames = [frame for event in trace for frame in event.get("frames", [])]
    plots = [_memory_viz.trace_plot(snapshot), _memory_viz.segment_plot(snapshot)]
    native = any("at::" in frame["name"] or "at::" in frame.get("filename", "") for frame in frames)
    return [native, [len(plot) > 1000 for plot in plots], len(kept)]


@case("what a trace says of a program")
def marks() -> Figures:
    torch.cuda.memory._record_memory_history(max_entries=100, stacks="python")
    with torch.profiler.record_function("a step"):
        kept = [block(1000)]
    if hasattr(torch.cuda.memory, "_set_memory_metadata"):
        torch.cuda.memory._set_memory_metadata("phase 1")
        kept.append(block(2000))
        torch.cuda.memory._set_memory_metadata("")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept.append(block(3000))
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    keys = sorted({key for event in trace for key in event} - {"addr", "time_us", "frames", "stream"})
    values = [[event.get(key) for key in keys if "pool" not in key] for event in trace]
    return [keys, values, [sum(any(event.get(key, (0, 0))) for event in trace) for key in keys if "pool" in key]]


@case("snapshots without traces")
def without_traces() -> Figures:
    torch.cuda.memory._record_memory_history(max_entries=100)
    kept = [block(size) for size in (1000, 3 * MIB)]
    plain = torch._C._cuda_memorySnapshot((0, 0, False))
    full = torch._C._cuda_memorySnapshot((0, 0, True))
    settings = {key: value for key, value in plain["allocator_settings"].items() if key != "PYTORCH_CUDA_ALLOC_CONF"}
    counts = [sum(map(len, snapshot["device_traces"])) > 0 for snapshot in (plain, full)]
    return [shape(plain["segments"]) == shape(full["segments"]), counts, shape(plain["segments"]), settings, len(kept)]


@case("pools")
def pools() -> Figures:
    figures = []
    pool, other = torch.cuda.MemPool(), torch.cuda.MemPool(no_split=True)
    figures.append(pool.use_count())
    with torch.cuda.use_mem_pool(pool):
        kept = [block(MIB), block(4 * MIB)]
        figures.append(pool.use_count())
    with torch.cuda.use_mem_pool(other):
        kept += [block(4 * MIB), block(4 * MIB)]
    kept.append(block(MIB))
    figures += [pool.use_count(), shape(pool.snapshot()), shape(other.snapshot()), len(torch.cuda.memory_snapshot())]
    kept.clear()
    torch.cuda.empty_cache()
    figures.append(len(torch.cuda.memory_snapshot()))
    del pool, other
    torch.cuda.empty_cache()
    return [*figures, torch.cuda.memory_reserved()]


@case("a pool of NCCL's memory", NCCL_NVLS_ENABLE="0", NCCL_SOCKET_IFNAME="lo")
def nccl_pool() -> Figures:
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        device = torch.device("cuda", 0)
        dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1, device_id=device)
        backend: Any = dist.distributed_c10d._get_default_group()._get_backend(device)
        pool = torch.cuda.MemPool(backend.mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            kept = [torch.full((size,), 1.5, device="cuda") for size in (1000, MIB, 3 * MIB)]
        kept.append(block(MIB))
        dist.all_reduce(kept[2])
        figures = [shape(pool.snapshot()), [tensor.double().sum().item() for tensor in kept[:3]], pool.use_count()]
        figures.append(torch.cuda.memory_reserved())
        del kept[:3]
        del pool
        torch.cuda.empty_cache()
        figures.append(torch.cuda.memory_reserved())
        dist.destroy_process_group()
    return figures


@case("a pool that helps out")
def use_on_oom() -> Figures:
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(80.5 * MIB / total)
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        lent = block(40 * MIB)
    address = lent.data_ptr()
    kept = block(40 * MIB)
    figures: list[Any] = []
    try:
        block(30 * MIB)
    except torch.OutOfMemoryError:
        figures.append("out of memory")
    del lent
    helped = block(30 * MIB)
    return [*figures, helped.data_ptr() == address, kept.numel(), torch.cuda.get_per_process_memory_fraction() < 1]


@case("trees of captured graphs")
def trees() -> Figures:
    from torch._inductor import cudagraph_trees

    trained = model()
    fast = torch.compile(trained, mode="reduce-overhead")
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    inputs = [torch.randn(size, 256, device="cuda") for size in (64, 64, 64, 32, 64, 32, 64, 32)]
    losses = []
    for x in inputs * 2:
        torch.compiler.cudagraph_mark_step_begin()
        loss = fast(x).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    manager = cudagraph_trees.get_container(0).tree_manager
    assert manager is not None, "no tree of graphs"
    paths = [len(list(nodes)) for nodes in manager.roots.values()]
    return [losses, paths, manager.new_graph_id().id]


@case("branches of a tree of graphs")
def branches() -> Figures:
    first = torch.compile(lambda x: (x * 2, x + 1), mode="reduce-overhead")
    left = torch.compile(lambda x: x.sin() @ x, mode="reduce-overhead")
    right = torch.compile(lambda x: x.cos() + 3, mode="reduce-overhead")
    x = torch.ones(128, 128, device="cuda") / 7
    sums = []
    with torch.no_grad():
        for step in range(12):
            torch.compiler.cudagraph_mark_step_begin()
            one, two = first(x)
            taken = left(one) if step % 3 else right(two)
            sums.append([float(taken.sum()), float(two.sum())])
            if step % 2:
                del one
    return sums


@case("checkpoints of a pool")
def checkpoints() -> Figures:
    pool = torch.cuda.graph_pool_handle()
    figures: list[Any] = []
    with torch.cuda.stream(torch.cuda.Stream()):
        device = torch.cuda.current_device()
        torch._C._cuda_beginAllocateCurrentStreamToPool(device, pool)
        kept = [block(size) for size in (512, 512, 3 * MIB, 2000, 5 * MIB)]
        del kept[1]
        torch.cuda.synchronize()
        state = torch._C._cuda_getCheckpointState(device, pool)

        def layout() -> Figures:
            own = [segment for segment in torch.cuda.memory_snapshot() if tuple(segment["segment_pool_id"]) == pool]
            return [
                [segment["address"], [[piece["size"], piece["state"]] for piece in segment["blocks"]]]
                for segment in own
            ]

        before, addresses = layout(), {tensor.untyped_storage().data_ptr() for tensor in kept}
        later = [block(size) for size in (100, 4 * MIB, 25 * MIB)]
        figures.append([piece for _, pieces in layout() for piece in pieces])
        figures.append(torch._C._cuda_checkPoolLiveAllocations(device, pool, addresses))
        # Each tensor loses its deleter: the blocks of the checkpoint belong to this function then.
        storages = [tensor.untyped_storage()._cdata for tensor in kept + later]
        torch._C._cuda_setCheckpointPoolState(device, state, storages, [])
        after = layout()
        figures.append([entry in after for entry in before])
        figures.append([piece for _, pieces in after for piece in pieces])
        figures.append(torch._C._cuda_checkPoolLiveAllocations(device, pool, addresses))
        torch._C._cuda_cudaCachingAllocator_raw_delete(addresses.pop())
        figures.append(len([piece for _, pieces in layout() for piece in pieces if piece[1] == "active_allocated"]))
        for address in addresses:
            torch._C._cuda_cudaCachingAllocator_raw_delete(address)
        torch._C._cuda_endAllocateToPool(device, pool)
    torch._C._cuda_releasePool(device, pool)
    torch.cuda.empty_cache()
    return [*figures, torch.cuda.memory_allocated()]


@case("max-autotune")
def autotune() -> Figures:
    torch.manual_seed(0)
    a, b = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    fast = torch.compile(lambda a, b: torch.relu(a @ b), mode="max-autotune")
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        result = fast(a, b).clone()
    torch.testing.assert_close(result, torch.relu(a @ b), rtol=1e-2, atol=1e-2)
    return list(result.shape)


@case("cudnn.benchmark")
def benchmark() -> Figures:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    layer = torch.nn.Conv2d(8, 16, 3, padding=1).cuda()
    x = torch.randn(4, 8, 64, 64, device="cuda", requires_grad=True)
    out = layer(x)
    out.sum().backward()
    return [list(out.shape), x.grad is not None and list(x.grad.shape)]


@case("requests without the cache")
def without_cache() -> Figures:
    kept = block(3 * MIB)
    keys = ("requested_bytes.all.allocated", "allocated_bytes.all.current", "reserved_bytes.all.current")
    figures: list[Any] = []
    torch.cuda.caching_allocator_enable(False)
    direct = torch.full((1000,), 3.0, device="cuda")
    direct.record_stream(torch.cuda.Stream())
    figures += [direct.sum().item(), [torch.cuda.memory_stats()[key] for key in keys]]
    torch.cuda.caching_allocator_enable(True)
    del direct, kept
    return [*figures, [torch.cuda.memory_stats()[key] for key in keys]]


@case("the stack of a release")
def release_stack() -> Figures:
    figures = []
    for context in ("alloc", "all", "state"):
        torch.cuda.empty_cache()
        torch.cuda.memory._record_memory_history(context=context, stacks="python")
        kept = block(1000)
        del kept
        torch.cuda.memory.empty_cache()
        figures.append("empty_cache" in json.dumps(torch.cuda.memory._snapshot()))
        torch.cuda.memory._record_memory_history(None)
    return figures


@case("observers of out of memory")
def observers() -> Figures:
    seen: list[Any] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *told: seen.append(told))
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.memory._record_memory_history(max_entries=100)
    texts = []
    for size in (1 << 45, 1 << 62):
        try:
            block(size)
        except torch.OutOfMemoryError as error:
            texts.append(str(error)[:60])
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    events = [[event["action"], event["size"]] for event in trace if event["action"] == "oom"]
    return [[[device, asked, limit == total] for device, asked, limit, _ in seen], texts, events]


@case("settings of the environment", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
def environment() -> Figures:
    kept = [block(size) for size in (1000, 3 * MIB, 30 * MIB)]
    if sys.argv[-1] == "plugin":
        import cachalot_gpu.torch

        segments = cachalot_gpu.torch.memory_snapshot()
    else:
        segments = torch.cuda.memory_snapshot()
    return [shape(segments), len(kept)]


def forked(branches: int) -> Figures:
    """Captures a block's use on some branches, and tells after each join whether a new block lies where it lay."""
    main, others = torch.cuda.Stream(), [torch.cuda.Stream() for _ in range(branches)]
    graph, kept, same = torch.cuda.CUDAGraph(), [], []
    torch.cuda.synchronize()
    with torch.cuda.stream(main):
        graph.capture_begin()
        total = torch.zeros(8, device="cuda")
        used = torch.ones(8, device="cuda")
        address = used.data_ptr()
        for other in others:
            other.wait_stream(main)
            with torch.cuda.stream(other):
                kept.append(used * 2)
            used.record_stream(other)
        del used

        def ask() -> None:
            kept.append(torch.empty(8, device="cuda"))
            same.append(kept[-1].data_ptr() == address)

        ask()
        for other, made in zip(others, kept[:branches]):
            main.wait_stream(other)
            total += made
            ask()
        graph.capture_end()
    graph.replay()
    torch.cuda.synchronize()
    return [same, total.tolist()]


@case("blocks that a captured graph reuses")
def graph_reuse() -> Figures:
    if hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        change = torch._C._accelerator_setAllocatorSettings
    else:
        change = torch.cuda.memory._set_allocator_settings
    figures = [forked(1)]
    change("graph_capture_record_stream_reuse:True")
    figures += [forked(1), forked(3)]
    assert figures[1][0] == [False, True] and figures[2][0] == [False, False, False, True], figures
    change("graph_capture_record_stream_reuse:False")
    return [*figures, forked(1)]


@case("settings at run time")
def settings() -> Figures:
    if hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        change = torch._C._accelerator_setAllocatorSettings
    else:
        change = torch.cuda.memory._set_allocator_settings
    figures = []
    for text in (
        "",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:[64:8,128:2,256:2,>:1]",
        "max_split_size_mb:40",
    ):
        if text:
            change(text)
        before = torch.cuda.memory_allocated()
        kept = block(84 * MIB)
        figures.append(torch.cuda.memory_allocated() - before)
        info = torch.cuda.memory._snapshot()["allocator_settings"]
        figures.append([info["max_split_size"], info["roundup_power2_divisions"]])
        del kept
    for wrong in ("foo:1,bar:2", "garbage_collection_threshold:1.2", "max_split_size_mb:2"):
        try:
            change(wrong)
            figures.append("accepted")
        except ValueError:
            figures.append("ValueError")
    return figures


def share(mode: str) -> Figures:
    """Shares tensors with a second process, which has cachalot in place if `mode` says so."""
    import torch.multiprocessing as processes

    # Where Yama restricts it, a process names those that may take its descriptors: here, all.
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1))
    context = processes.get_context("spawn")
    tasks, answers = context.Queue(), context.Queue()
    child = context.Process(target=use_shared, args=(mode, tasks, answers))
    child.start()
    shared = [torch.arange(size, device="cuda") for size in (1000, MIB, 6 * MIB)]
    tasks.put([*shared, shared[-1][1000:]])
    figures = answers.get(timeout=60)
    torch.cuda.synchronize()
    figures += [int(tensor.sum()) for tensor in shared]
    # A second time: the same memory, whose pages are pinned once.
    tasks.put(shared)
    figures += answers.get(timeout=60)
    tasks.put(None)
    child.join(60)
    figures += [int(tensor.sum()) for tensor in shared] + [child.exitcode]
    before = torch.cuda.memory_reserved()
    del shared
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    return [*figures, before > 0, torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]


def use_shared(mode: str, tasks: Any, answers: Any) -> None:
    """Reads and changes the tensors of another process, until it sends none."""
    put_in_place(mode)
    while tensors := tasks.get():
        sums = [int(tensor.sum()) for tensor in tensors]
        for tensor in tensors[:3]:
            tensor.neg_()
        torch.cuda.synchronize()
        # A part of a tensor is in the same mapping.
        distances = [tensor.data_ptr() - tensors[2].data_ptr() for tensor in tensors[3:]]
        del tensor, tensors
        answers.put(sums + distances)


@case("a tensor shared with PyTorch's allocator")
def share_with_native() -> Figures:
    return share("native")


@case("a tensor shared with another of its kind")
def share_with_own() -> Figures:
    return share(sys.argv[-1])


@case("tensors of expandable segments, shared", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
def share_expandable() -> Figures:
    return share(sys.argv[-1])


@case("tensors of stitched segments, shared", CACHALOT_CONF="policy:stitched")
def share_stitched() -> Figures:
    return share(sys.argv[-1])


@case("the profiler of memory")
def profiler() -> Figures:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as recorded:
        kept = block(3 * MIB)
        del kept
    return sorted(event.device_memory_usage for event in recorded.events() if event.device_memory_usage)


def put_in_place(mode: str) -> None:
    """Puts cachalot in place, as a whole allocator or as a plug-in."""
    if mode != "native":
        os.environ["CACHALOT_TORCH_PLUGIN"] = "1" if mode == "plugin" else ""
        import cachalot_gpu.torch

        cachalot_gpu.torch.enable()


LONGEST = 100
"""The seconds after which a case has failed."""


def run(name: str, mode: str) -> tuple[Figures, float]:
    """Runs a case in a process of its own. Returns the figures, or a text with the error, and the seconds."""
    begin = time.monotonic()
    command = [sys.executable, "-W", "ignore", __file__, "--case", name, mode]
    settings = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CACHALOT_CONF"}
    variables = {key: value for key, value in os.environ.items() if key not in settings} | ENVIRONMENT[name]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LONGEST, check=False)
    except subprocess.TimeoutExpired:
        return "Timeout", LONGEST
    seconds = time.monotonic() - begin
    lines = [line for line in done.stdout.splitlines() if line.startswith("FIGURES ")]
    if done.returncode or not lines:
        return "Failed: " + (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1][:300], seconds
    return json.loads(lines[-1].removeprefix("FIGURES ")), seconds


WAYS = ("native", "whole", "plugin")


def judge(name: str, results: dict[str, tuple[Figures, float]]) -> tuple[bool, list[str]]:
    """Returns whether a case passes, and its row of the table."""
    native, whole, plugin = (results[way][0] for way in WAYS)
    is_error = [isinstance(figures, str) for figures in (native, whole, plugin)]
    equal = not any(is_error[:2]) and native == whole
    passes = equal and (is_error[2] or name in WORKS_AS_A_PLUGIN or plugin != native)
    if not passes:
        print(f"DIFFERS: {name}\n  native {native}\n  whole  {whole}\n  plugin {plugin}")
    words = ["fails" if error else "works" for error in is_error]
    if not is_error[1] and not equal:
        words[1] = "other figures"
    return passes, [name, *words]


def main(out: Path) -> int:
    """Runs every case in every way, and writes a table, which grows as the cases end."""
    results: dict[str, dict[str, tuple[Figures, float]]] = {name: {} for name in CASES}
    table = [["", "PyTorch's allocator", "cachalot", "as a plug-in"]]
    passed = 0
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        futures = {pool.submit(run, name, way): (name, way) for name in CASES for way in WAYS}
        for future in as_completed(futures):
            name, way = futures[future]
            results[name][way] = future.result()
            if len(results[name]) == len(WAYS):
                passes, row = judge(name, results[name])
                passed += passes
                table.append(row)
                print(*row, "seconds:", *(f"{results[name][way][1]:.0f}" for way in WAYS), flush=True)
                tables.write(out, table)
    print(f"{passed} of {len(CASES)} cases are equal")
    return 0 if passed == len(CASES) else 1


if __name__ == "__main__":
    if sys.argv[1] == "--case":
        put_in_place(sys.argv[3])
        print("FIGURES " + json.dumps(CASES[sys.argv[2]]()))
    else:
        sys.exit(main(Path(sys.argv[1])))
