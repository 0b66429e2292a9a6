#!/usr/bin/env python3
"""Programs in PyTorch with a planted memory error each, and programs without one: which modes find them.

    tests/guards/pytorch.py OUT.csv [--sanitizer COMPUTE-SANITIZER] [--jobs 8] [--longest SECONDS] [--limit SECONDS]
        [--only MODE;MODE]

Each program is a process in each mode, with a time limit, which --limit sets under a tool. A program that goes wrong asks the library which block its wrong
address belongs to, and where the block was allocated. `block`: noticed, and the right block is named with the line that
allocated it; `fault`: noticed only. Under compute-sanitizer the error is the tool's; `initcheck` runs what reads memory that
was not written, and the clean programs.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT_S = 60
MODES = {
    # what it is called: the settings, and the tool
    "nothing": ("policy:caching,nvtx:off", ""),
    "`guard:all`": ("policy:caching,nvtx:off,guard:all", ""),
    "`guard:after`": ("policy:caching,nvtx:off,guard:after", ""),
    "`canary:True`": ("policy:caching,nvtx:off,canary:True", ""),
    "memcheck": ("policy:caching,nvtx:off", "memcheck"),
    "memcheck, `nvtx:auto`": ("policy:caching", "memcheck"),
    "initcheck, `nvtx:auto`": ("policy:caching", "initcheck"),
}
MIB = 1 << 20
KERNEL = b"""
.version 7.0
.target sm_75
.address_size 64
// Adds 1 to count numbers from the number first on, each stride numbers behind the one before.
.visible .entry planted(.param .u64 at, .param .u32 first, .param .u32 stride, .param .u32 count) {
  .reg .pred %beyond;
  .reg .b32 %r<8>;
  .reg .b64 %d<3>;
  .reg .f32 %f;
  ld.param.u64 %d0, [at];
  ld.param.u32 %r0, [first];
  ld.param.u32 %r1, [stride];
  ld.param.u32 %r2, [count];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.u32 %r6, %r3, %r4, %r5;
  setp.ge.u32 %beyond, %r6, %r2;
  @%beyond bra DONE;
  mad.lo.u32 %r7, %r6, %r1, %r0;
  cvta.to.global.u64 %d0, %d0;
  mul.wide.u32 %d1, %r7, 4;
  add.u64 %d2, %d0, %d1;
  ld.global.f32 %f, [%d2];
  add.f32 %f, %f, 0f3F800000;
  st.global.f32 [%d2], %f;
DONE:
  ret;
}
"""
"""A kernel of an extension. In PTX, so that it needs no compiler on the machine."""
PROGRAMS: dict[str, Callable[[Any], None]] = {}


def program(run: Callable[[Any], None]) -> Callable[[Any], None]:
    """Puts a program into the table, by its name."""
    PROGRAMS[run.__name__.replace("_", "-")] = run
    return run


class Scene:
    """What the programs use. `wrong` is the first wrong address, in or beside the block at `block`."""

    def __init__(self, torch: Any) -> None:
        self.torch, self.wrong, self.block = torch, 0, 0
        self.side = torch.cuda.Stream()
        self.kept: list[Any] = []
        self.function: ctypes.c_void_p | None = None

    def planted(self, count: int) -> Any:
        """The block with the error, of so many 32-bit numbers."""
        return self.torch.ones(count, dtype=self.torch.float32, device="cuda")

    def planted_empty(self, count: int) -> Any:
        """The block with the error, not written."""
        return self.torch.empty(count, dtype=self.torch.float32, device="cuda")

    def address(self, tensor: Any, first_wrong: int) -> int:
        """The address of a tensor, whose error begins at the number `first_wrong`."""
        at: int = tensor.data_ptr()
        self.block, self.wrong = at, at + 4 * first_wrong
        return at

    def alias(self, at: int, count: int) -> Any:
        """A tensor at an address that nothing keeps alive, as a wrong extension or a wrong size makes one."""

        class Foreign:
            __cuda_array_interface__ = {
                "shape": (count,),
                "typestr": "<f4",
                "data": (at, False),
                "version": 3,
                "stream": None,
            }

        made = self.torch.as_tensor(Foreign(), device="cuda")
        assert made.data_ptr() == at, "a copy"
        return made

    def settle(self) -> None:
        """Has the allocator find out what is complete."""
        self.torch.cuda.synchronize()
        for count in (1, 300_000):
            self.kept.append(self.torch.zeros(count, device="cuda"))
        self.torch.cuda.synchronize()

    def add(self, at: int, first: int, stride: int, count: int) -> None:
        """Launches the kernel on the current stream."""
        driver = ctypes.CDLL("libcuda.so.1")

        def checked(code: int) -> None:
            if code:
                raise RuntimeError(f"CUDA driver error {code}")

        if self.function is None:
            module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
            checked(driver.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(KERNEL)))
            checked(driver.cuModuleGetFunction(ctypes.byref(self.function), module, b"planted"))
        values = [ctypes.c_uint64(at), *(ctypes.c_uint32(value) for value in (first, stride, count))]
        arguments = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        checked(driver.cuLaunchKernel(self.function, (count + 255) // 256, 1, 1, 256, 1, 1, 0, stream, arguments, None))


@program
def space_kernel_one_too_many(it: Scene) -> None:
    """A custom kernel with `<=` in the place of `<`."""
    block = it.planted(MIB)
    it.add(it.address(block, MIB), 0, 1, MIB + 1)


@program
def space_kernel_wrong_stride(it: Scene) -> None:
    """A custom kernel that takes rows of 1,024 numbers for rows of 1,025."""
    block = it.planted(1024 * 1024)
    # The last row is the first that ends behind the block.
    it.add(it.address(block, 1023 * 1025 + 1023), 1023, 1025, 1024)


@program
def space_view_too_long(it: Scene) -> None:
    """A view of foreign memory with a wrong size: its sum reads behind the block."""
    block = it.planted(2 * MIB)
    view = it.alias(it.address(block, 2 * MIB), 4 * MIB)
    float(view.sum())


@program
def space_write_in_slack(it: Scene) -> None:
    """A write right behind a block of 1,000 bytes, inside of what the allocator has rounded up to."""
    block = it.planted(250)
    view = it.alias(it.address(block, 250), 251)
    view[250:].fill_(2.0)
    it.torch.cuda.synchronize()
    del block
    it.settle()


@program
def time_write_after_free(it: Scene) -> None:
    """An extension has kept the address of a tensor that is gone."""
    block = it.planted(MIB)
    view = it.alias(it.address(block, 0), MIB)
    del block
    it.settle()
    view.fill_(2.0)


@program
def time_read_of_reused(it: Scene) -> None:
    """The kept address is read when the memory has another tensor."""
    block = it.planted(3 * MIB)
    view = it.alias(it.address(block, 0), 3 * MIB)
    del block
    it.settle()
    it.kept.append(it.torch.zeros(3 * MIB, device="cuda"))
    float(view.sum())


@program
def time_graph_input_gone(it: Scene) -> None:
    """A captured graph whose input was dropped before the replay."""
    block = it.planted(2 * MIB)
    result = it.torch.zeros(2 * MIB, device="cuda")
    it.torch.mul(block, 2.0, out=result)
    graph = it.torch.cuda.CUDAGraph()
    it.torch.cuda.synchronize()
    with it.torch.cuda.graph(graph):
        it.torch.mul(block, 2.0, out=result)
    it.address(block, 0)
    del block
    it.settle()
    graph.replay()


@program
def stream_without_record(it: Scene) -> None:
    """A side stream is behind, and reads a tensor that was dropped without `record_stream`."""
    block, result = it.planted(2 * MIB), it.torch.zeros(2 * MIB, device="cuda")
    it.address(block, 0)
    it.side.wait_stream(it.torch.cuda.current_stream())
    with it.torch.cuda.stream(it.side):
        it.torch.cuda._sleep(200_000_000)
        it.torch.mul(block, 2.0, out=result)
    del block
    it.torch.cuda.current_stream().synchronize()
    it.kept.append(it.torch.zeros(2 * MIB, device="cuda"))


@program
def stream_launched_late(it: Scene) -> None:
    """A side stream begins with a tensor after it was dropped without `record_stream`."""
    block = it.planted(2 * MIB)
    view = it.alias(it.address(block, 0), 2 * MIB)
    del block
    it.settle()
    with it.torch.cuda.stream(it.side):
        view.add_(1.0)


@program
def init_empty_is_read(it: Scene) -> None:
    """`torch.empty` in the place of `torch.zeros`: the sum is of what another tensor has left."""
    old = it.planted(MIB)
    del old
    it.torch.cuda.synchronize()
    block = it.planted_empty(MIB)
    # The tool reports each thread that reads, which takes minutes for all of them.
    it.add(it.address(block, 0), 0, 1, 256)


@program
def clean_training(it: Scene) -> None:
    """Three steps of a small network."""
    torch = it.torch
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        model(torch.ones(128, 64, device="cuda")).square().mean().backward()
        optimizer.step()


@program
def clean_streams(it: Scene) -> None:
    """A side stream uses tensors, each with `record_stream`."""
    main = it.torch.cuda.current_stream()
    for _ in range(5):
        block = it.planted(MIB)
        it.side.wait_stream(main)
        with it.torch.cuda.stream(it.side):
            it.torch.cuda._sleep(2_000_000)
            float_sum = block.sum()
        block.record_stream(it.side)
        del block
        main.wait_stream(it.side)
        float_sum.record_stream(main)
        float_sum.add_(1.0)


@program
def clean_graph(it: Scene) -> None:
    """A captured graph, whose input lives."""
    block, result = it.planted(MIB), it.torch.zeros(MIB, device="cuda")
    it.torch.mul(block, 2.0, out=result)
    graph = it.torch.cuda.CUDAGraph()
    it.torch.cuda.synchronize()
    with it.torch.cuda.graph(graph):
        it.torch.mul(block, 2.0, out=result)
    for _ in range(3):
        graph.replay()


@program
def clean_kernel(it: Scene) -> None:
    """A custom kernel on a whole block and on views of it, over sizes."""
    for count in (1, 250, 1000, 4096, 300_000, MIB, 3 * MIB):
        block = it.planted(count)
        it.add(block.data_ptr(), 0, 1, count)
        it.add(block[count // 2 :].data_ptr(), 0, 1, count - count // 2)
        del block


def run(name: str, settings: str) -> int:
    """Runs a program, and prints what came of it: name, outcome, the right block, the right line, the wrong address, the
    exception, and the explanation."""
    import torch

    import cachalot_gpu.torch

    cachalot_gpu.torch.enable(settings, patch=True)
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    cachalot_gpu.torch.record_memory_history()
    it, failure = Scene(torch), ""
    try:
        PROGRAMS[name](it)
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001
        failure = f"{type(error).__name__}: {error}".splitlines()[0]
    # An error that is no error of the device is the script's.
    of_device = any(
        word in failure for word in ("CUDA error", "CUDA driver error", "AcceleratorError", "illegal", "launch failure")
    )
    said = ""
    if it.wrong:
        try:
            said = cachalot_gpu.torch.explain(it.wrong)
        except Exception as error:  # noqa: BLE001
            said = f"{type(error).__name__}: {error}"
    block = f" at {it.block:#x}," in said
    line = "planted (" in said or "planted" in said.partition("Allocated at:")[2].partition("Freed at:")[0]
    outcome = "broken" if failure and not of_device else "found" if failure else "passed"
    fields = [
        name,
        outcome,
        "block" if block else "-",
        "line" if line else "-",
        hex(it.wrong),
        failure or "-",
        " ".join(said.split()),
    ]
    print("RESULT\t" + "\t".join(fields), flush=True)
    # The context may be broken.
    os._exit(0)


def outcome_of(name: str, mode: str, sanitizer: str | None, limit: float, deadline: float) -> tuple[str, str]:
    """Runs a program in a mode, under a tool for `limit` seconds at most. Returns the cell of the table, and the text for reading."""
    settings, tool = MODES[mode]
    if time.monotonic() > deadline:
        return "not run", ""
    command = [sys.executable, __file__, "--child", name, settings]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        if tool:
            assert sanitizer
            command = [sanitizer, "--tool", tool, "--log-file", str(log), *command]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=limit if tool else LIMIT_S, check=False
            )
            out, err = done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            return "too late", str(late.stderr or b"")[-400:]
        report = log.read_text(errors="replace") if log.exists() else ""
    line = next((line for line in out.splitlines() if line.startswith("RESULT\t")), "")
    text = "\n".join([line, *report.splitlines()[:12], *err.splitlines()[-6:]])
    if not line:
        return "broken", text
    _, _, outcome, block, site, wrong, _, _ = (line.split("\t") + [""] * 8)[:8]
    if outcome == "broken":
        return "broken", text
    # A canary and a tool stop nothing: they report.
    damaged = "memory was overwritten" in err
    summed = any("ERROR SUMMARY" in each and " 0 errors" not in each for each in report.splitlines())
    reported = tool != "" and (summed or "Address 0x" in report)
    if outcome != "found" and not damaged and not reported:
        return "-", text
    if damaged:
        named = f"memory was overwritten: {wrong} " in err.lower()
        return "block" if named and "planted" in err else "fault", text
    if reported:
        return "block" if wrong in report.lower() and block == "block" and site == "line" else "fault", text
    return "block" if block == "block" and site == "line" else "fault", text


def main() -> int:
    """The table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--sanitizer")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--longest", type=float, default=300)
    parser.add_argument("--limit", type=float, default=120)
    parser.add_argument("--only", default=";".join(MODES))
    arguments = parser.parse_args()
    chosen = [mode for mode in MODES if mode in arguments.only.split(";")]
    modes = [mode for mode in chosen if arguments.sanitizer or not MODES[mode][1]]
    deadline = time.monotonic() + arguments.longest
    cells: dict[tuple[str, str], str] = {}
    texts: list[str] = []

    def one(name: str, mode: str) -> None:
        cells[name, mode], text = outcome_of(name, mode, arguments.sanitizer, arguments.limit, deadline)
        texts.append(f"== {name}, {mode}: {cells[name, mode]}\n{text}\n")

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as crew:
        for mode in modes:
            for name in PROGRAMS:
                if not MODES[mode][1].startswith("init") or name.startswith(("init-", "clean-")):
                    crew.submit(one, name, mode)
    planted = [name for name in PROGRAMS if not name.startswith("clean-")]
    clean = [name for name in PROGRAMS if name.startswith("clean-")]
    rows = [["program", *modes]]
    for title, names in (("found", planted), ("false alarms", clean)):
        counts = [
            (
                sum(cells.get((name, mode)) in ("block", "fault") for name in names),
                sum((name, mode) in cells for name in names),
            )
            for mode in modes
        ]
        rows.append([title, *(f"{found} of {ran}" for found, ran in counts)])
    rows += [[f"`{name}`", *(cells.get((name, mode), "") for mode in modes)] for name in PROGRAMS]
    with arguments.out.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    arguments.out.with_suffix(".txt").write_text("\n".join(sorted(texts)))
    print(arguments.out.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(run(*sys.argv[2:4]))
    sys.exit(main())
