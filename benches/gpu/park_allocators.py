"""The allocators that park.py compares: how each leads requests under a tag, gives memory back and brings it back.

cachalot, torch_memory_saver in both of its modes, vLLM's cumem allocator, and a plain copy to pinned memory, which
gives nothing back and is the yardstick of the others.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KEPT = ("weights", "small")
"""The tags whose contents are kept while parked. Those of the others are dropped."""


class Skipped(Exception):
    """The allocator cannot run here."""


class Allocator:
    """The interface that park.py needs from an allocator."""

    name = ""
    parks_graphs = True
    """Whether the memory of captured graphs can be parked."""

    def enable(self) -> None:
        """Puts the allocator in place, before the first use of CUDA."""

    def region(self, tag: str) -> contextlib.AbstractContextManager[Any]:
        """Leads the thread's requests under a tag."""
        raise NotImplementedError

    def capture(self, graph: Any, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Captures a graph into the shared pool of graphs, tag `graphs`."""
        raise NotImplementedError

    def retain(self, bytes_: int) -> None:
        """Keeps memory of the host for the next park."""

    def park(self, tag: str) -> None:
        """Gives the memory of a tag back."""
        raise NotImplementedError

    def wake(self, tag: str) -> None:
        """Brings the memory of a tag back, complete when the device is idle."""
        raise NotImplementedError

    def pages(self, tag: str) -> int | None:
        """The bytes that a tag has on the device, where the allocator tells."""
        return None

    def host_bytes(self) -> int:
        """The pinned bytes that the allocator says it holds."""
        return 0

    def held(self) -> int | None:
        """The bytes of the device that the allocator itself holds, if it reports them."""
        return None


class Cachalot(Allocator):
    """cachalot in PyTorch's place, with a policy."""

    def __init__(self, policy: str) -> None:
        self.name, self.policy = f"cachalot, `{policy}`", policy

    def enable(self) -> None:
        import cachalot_gpu.torch

        self.own: Any = cachalot_gpu.torch
        self.own.enable(self.policy)

    def region(self, tag: str) -> contextlib.AbstractContextManager[Any]:
        region: contextlib.AbstractContextManager[Any] = self.own.Tag(tag)
        return region

    def capture(self, graph: Any, stream: Any) -> contextlib.AbstractContextManager[Any]:
        import torch

        captured: contextlib.AbstractContextManager[Any] = torch.cuda.graph(
            graph, pool=self.own.Tag("graphs").pool().id, stream=stream
        )
        return captured

    def retain(self, bytes_: int) -> None:
        self.own.retain_host_memory(bytes_)

    def park(self, tag: str) -> None:
        self.own.Tag(tag).park(keep=tag in KEPT)

    def wake(self, tag: str) -> None:
        self.own.Tag(tag).wake()

    def pages(self, tag: str) -> int | None:
        parking = self.own.Tag(tag).parking
        return int(parking.mapped_bytes + parking.parked_bytes + parking.ordinary_bytes)

    def host_bytes(self) -> int:
        return int(self.own.Tag("weights").parking.host_bytes)

    def held(self) -> int | None:
        memory = self.own.remaining_memory()
        return int(memory.used_bytes - memory.other_bytes)


class Saver(Allocator):
    """torch_memory_saver. The mode `preload` needs its library in LD_PRELOAD."""

    def __init__(self, mode: str) -> None:
        self.name, self.mode = f"torch_memory_saver, `{mode}`", mode
        self.parks_graphs = mode == "preload"

    def enable(self) -> None:
        try:
            from torch_memory_saver import torch_memory_saver
        except ImportError as error:
            raise Skipped(f"torch_memory_saver cannot be imported: {error}") from None
        if self.mode == "preload" and "torch_memory_saver" not in os.environ.get("LD_PRELOAD", ""):
            raise Skipped("LD_PRELOAD does not name torch_memory_saver's library")
        torch_memory_saver.hook_mode = self.mode
        self.own: Any = torch_memory_saver
        self.pool: Any = None

    def region(self, tag: str) -> contextlib.AbstractContextManager[Any]:
        region: contextlib.AbstractContextManager[Any] = self.own.region(tag=tag, enable_cpu_backup=tag in KEPT)
        return region

    def capture(self, graph: Any, stream: Any) -> contextlib.AbstractContextManager[Any]:
        import torch

        self.pool = self.pool or torch.cuda.graph_pool_handle()
        captured: contextlib.AbstractContextManager[Any]
        if self.parks_graphs:
            captured = self.own.cuda_graph(graph, pool=self.pool, stream=stream, tag="graphs")
        else:
            captured = torch.cuda.graph(graph, pool=self.pool, stream=stream)
        return captured

    def retain(self, bytes_: int) -> None:
        self.own.retain_cpu_backup = bytes_ > 0

    def park(self, tag: str) -> None:
        self.own.pause(tag)

    def wake(self, tag: str) -> None:
        self.own.resume(tag)


class CuMem(Allocator):
    """vLLM's cumem allocator: its C++ extension, built here from the published file, and what its Python does for
    each block when it sleeps and wakes."""

    name = "vLLM's cumem"

    def __init__(self, source: str) -> None:
        self.source = source
        # Address: device, bytes, address and handle; the tag; the contents while parked.
        self.blocks: dict[int, tuple[int, int, int, int]] = {}
        self.tags: dict[int, str] = {}
        self.contents: dict[int, Any] = {}
        self.tag = ""
        self.pools: dict[str, tuple[Any, Any]] = {}

    def enable(self) -> None:
        if not self.source:
            raise Skipped("CUMEM does not name the file cumem_allocator.cpp")
        from torch.utils.cpp_extension import CUDA_HOME

        library = Path(tempfile.mkdtemp()) / "cumem_allocator.so"
        folders = [sysconfig.get_path("include"), str(Path(CUDA_HOME or "/usr/local/cuda") / "include")]
        stubs = [f"-L{folder}" for folder in Path(CUDA_HOME or "/usr/local/cuda").glob("**/stubs")]
        command = ["c++", "-O2", "-std=c++17", "-shared", "-fPIC", self.source, "-o", str(library)]
        command += [f"-I{folder}" for folder in folders] + [*stubs, "-lcuda"]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            raise Skipped(f"{self.source} cannot be built: {built.stderr.strip().splitlines()[-1:]}")
        spec = importlib.util.spec_from_file_location("cumem_allocator", library)
        if spec is None or spec.loader is None:
            raise Skipped(f"{library} cannot be imported")
        self.extension: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.extension)
        self.library = str(library)
        # The extension keeps a borrowed reference to each.
        self.callbacks = self._obtained, self._freed
        self.runtime = ctypes.CDLL(next(self._runtimes(), "libcudart.so"))
        self.runtime.cudaMemcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    @staticmethod
    def _runtimes() -> Iterator[str]:
        """The CUDA runtime that PyTorch has loaded."""
        import torch

        torch.cuda.is_available()
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            if "libcudart" in line:
                yield line.split()[-1]

    def _obtained(self, block: tuple[int, int, int, int]) -> None:
        self.blocks[block[2]] = block
        self.tags[block[2]] = self.tag

    def _freed(self, address: int) -> tuple[int, int, int, int]:
        import torch

        self.contents.pop(address, None)
        torch.cuda.synchronize()
        return self.blocks.pop(address)

    def _pool(self, tag: str) -> Any:
        import torch

        if tag not in self.pools:
            self.extension.init_module(*self.callbacks)
            allocator = torch.cuda.memory.CUDAPluggableAllocator(self.library, "my_malloc", "my_free")
            self.pools[tag] = torch.cuda.MemPool(allocator.allocator()), allocator
        return self.pools[tag][0]

    @contextlib.contextmanager
    def region(self, tag: str) -> Iterator[None]:
        import torch

        before, self.tag = self.tag, tag
        with torch.cuda.use_mem_pool(self._pool(tag)):
            yield
        self.tag = before

    @contextlib.contextmanager
    def capture(self, graph: Any, stream: Any) -> Iterator[None]:
        import torch

        before, self.tag = self.tag, "graphs"
        with torch.cuda.graph(graph, pool=self._pool("graphs").id, stream=stream):
            yield
        self.tag = before

    def _copy(self, to: int, source: int, bytes_: int, kind: int) -> None:
        if code := self.runtime.cudaMemcpy(to, source, bytes_, kind):
            raise RuntimeError(f"cudaMemcpy returned {code}")

    def park(self, tag: str) -> None:
        import torch

        torch.cuda.synchronize()
        for address, block in self.blocks.items():
            if self.tags[address] == tag:
                if tag in KEPT:
                    # PyTorch caches the pinned memory for the next park.
                    contents = torch.empty(block[1], dtype=torch.uint8, pin_memory=True)
                    self._copy(contents.data_ptr(), address, block[1], 2)
                    self.contents[address] = contents
                self.extension.python_unmap_and_release(*block)

    def wake(self, tag: str) -> None:
        for address, block in self.blocks.items():
            if self.tags[address] == tag:
                self.extension.python_create_and_map(*block)
                contents = self.contents.pop(address, None)
                if contents is not None:
                    self._copy(address, contents.data_ptr(), block[1], 1)

    def pages(self, tag: str) -> int | None:
        return sum(block[1] for address, block in self.blocks.items() if self.tags[address] == tag)

    def host_bytes(self) -> int:
        import torch

        return int(torch.cuda.host_memory_stats().get("allocated_bytes.current", 0))


class Plain(Allocator):
    """Copies every tensor of a tag to one pinned block and back, on one stream."""

    name = "plain pinned copy"

    def __init__(self) -> None:
        self.tensors: dict[str, list[Any]] = {}
        self.contents: dict[str, Any] = {}

    def region(self, tag: str) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def park(self, tag: str) -> None:
        import torch

        if tag not in self.contents:
            bytes_ = sum(tensor.numel() for tensor in self.tensors[tag])
            self.contents[tag] = torch.empty(bytes_, dtype=torch.int32, pin_memory=True)
        for tensor, contents in self._pairs(tag):
            contents.copy_(tensor, non_blocking=True)
        torch.cuda.synchronize()

    def wake(self, tag: str) -> None:
        for tensor, contents in self._pairs(tag):
            tensor.copy_(contents, non_blocking=True)

    def _pairs(self, tag: str) -> Iterator[tuple[Any, Any]]:
        at = 0
        for tensor in self.tensors[tag]:
            yield tensor, self.contents[tag][at : at + tensor.numel()]
            at += tensor.numel()


ALLOCATORS: dict[str, Callable[[], Allocator]] = {
    "plain": Plain,
    "caching": lambda: Cachalot("policy:caching"),
    "stitched": lambda: Cachalot("policy:stitched"),
    "saver-torch": lambda: Saver("torch"),
    "saver-preload": lambda: Saver("preload"),
    "cumem": lambda: CuMem(os.environ.get("CUMEM", "")),
}
"""By the name on the command line."""
