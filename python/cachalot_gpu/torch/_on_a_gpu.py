"""The answers of ``torch.cuda`` while a program is predicted: those of a GPU that does nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor

from ._gpus import Gpu
from ._stand_ins import counted_steps, stand_ins


class _Stream:
    """A stream, or a scope of one. All work of a prediction is in one order."""

    device_index = stream_id = cuda_stream = priority = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device("cuda", 0)

    def __enter__(self) -> _Stream:
        """Starts a scope, in which nothing changes."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the scope."""
        return None

    def query(self) -> bool:
        """Returns whether all work is done: it always is."""
        return True

    def is_capturing(self) -> bool:
        """Returns whether the stream captures a graph, as optimizers of PyTorch 2.15 ask: it never does."""
        return False

    def record_event(self, event: Any = None) -> Any:
        """Returns the event, or a new one."""
        return event or _Event()

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Does nothing: there is no other work."""

    synchronize = wait_event = wait_stream = _nothing


class _Event:
    """An event, which is complete."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device("cuda", 0)

    def query(self) -> bool:
        """Returns whether the event is complete: it always is."""
        return True

    def elapsed_time(self, _: Any) -> float:
        """Returns the milliseconds to another event: none pass."""
        return 0.0

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Does nothing: there is no work."""

    record = wait = synchronize = _nothing


def _ones(tensor: torch.Tensor) -> Any:
    """Returns a list in the shape of a tensor, of the value that ``.item()`` returns."""
    if tensor.dim() == 0:
        return tensor.item()
    one: Any = False if tensor.dtype == torch.bool else 1.0 if tensor.is_floating_point() else 1
    for size in reversed(tensor.shape):
        one = [one] * size if not isinstance(one, list) else [list(one) for _ in range(size)]
    return one


def _array(tensor: torch.Tensor, *_: Any, **__: Any) -> Any:
    """Returns an array of NumPy in the shape of a tensor, of ones."""
    import numpy

    kind = getattr(numpy, str(tensor.dtype).removeprefix("torch."), numpy.float32)
    return numpy.ones(tuple(tensor.shape), dtype=kind)


def _without_values(answer: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that has an answer for tensors without values."""

    def method(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        chosen = answer if isinstance(tensor, FakeTensor) else otherwise
        return chosen(tensor, *arguments, **named)

    return method


def _step(_: Any, optimizer: Any, __: Any, *arguments: Any, **named: Any) -> Any:
    """Steps, as a scaler of gradients does if all of them are finite."""
    return optimizer.step(*arguments, **named)


def _memory(recorder: Any, total: int) -> dict[str, Callable[..., Any]]:
    """Returns what is asked about memory. Nothing is reserved before the replay: it is what is
    allocated."""

    def allocated(*_: Any) -> int:
        return int(recorder.live_bytes)

    def peak(*_: Any) -> int:
        return int(recorder.peak_bytes)

    def reset(*_: Any) -> None:
        recorder.peak_bytes = recorder.live_bytes

    def stats(*_: Any) -> dict[str, int]:
        names = ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes")
        whole = {f"{name}.all.current": allocated() for name in names}
        return {**whole, **{f"{name}.all.peak": peak() for name in names}, "num_alloc_retries": 0, "num_ooms": 0}

    return {
        "memory_allocated": allocated,
        "memory_reserved": allocated,
        "memory_cached": allocated,
        "max_memory_allocated": peak,
        "max_memory_reserved": peak,
        "max_memory_cached": peak,
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "reset_max_memory_cached": reset,
        "reset_accumulated_memory_stats": lambda *_: None,
        "memory_stats": stats,
        "memory_summary": lambda *_, **__: f"a prediction: {allocated()} bytes allocated, {peak()} at the peak",
        "memory_stats_as_nested_dict": lambda *_: {},
        "memory_snapshot": lambda *_, **__: [],
        "_record_memory_history": lambda *_, **__: None,
        "_snapshot": lambda *_, **__: {"segments": [], "device_traces": []},
        "_dump_snapshot": lambda *_, **__: None,
        "mem_get_info": lambda *_: (max(total - allocated(), 0), total),
        "empty_cache": lambda: recorder.empty_cache(),
    }


def _properties(gpu: Gpu, total: int) -> SimpleNamespace:
    """Returns the properties of the device."""
    return SimpleNamespace(
        name=gpu.name,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        total_memory=total,
        multi_processor_count=gpu.processors,
        max_threads_per_multi_processor=2048 if gpu.capability[1] == 0 else 1536,
        warp_size=32,
        L2_cache_size=50 << 20,
        is_integrated=0,
        is_multi_gpu_board=0,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=(gpu.shared_kib - 1) << 10,
        shared_memory_per_multiprocessor=gpu.shared_kib << 10,
        gcnArchName=gpu.name,
        uuid="00000000-0000-0000-0000-000000000000",
        pci_bus_id=0,
        pci_device_id=0,
        pci_domain_id=0,
    )


def _nothing(*_: Any, **__: Any) -> None:
    """Does nothing."""


def _scope(*_: Any, **__: Any) -> Any:
    """Returns a scope in which nothing changes."""
    return contextlib.nullcontext()


def _device(gpu: Gpu, total: int) -> dict[str, Any]:
    """Returns what is asked about the device, and what it is told to do."""
    properties = _properties(gpu, total)
    has_bf16 = gpu.capability >= (8, 0)
    stream = _Stream()
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "init": _nothing,
        "_lazy_init": _nothing,
        "_lazy_call": _nothing,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": _nothing,
        "device": _scope,
        "device_of": _scope,
        "get_device_name": lambda *_, **__: gpu.name,
        "get_device_capability": lambda *_, **__: gpu.capability,
        "get_device_properties": lambda *_, **__: properties,
        "get_arch_list": lambda: [f"sm_{gpu.capability[0]}{gpu.capability[1]}"],
        "get_gencode_flags": lambda: "",
        "is_bf16_supported": lambda *_, **__: has_bf16,
        "is_tf32_supported": lambda: has_bf16,
        "is_current_stream_capturing": lambda: False,
        "can_device_access_peer": lambda *_: False,
        "synchronize": _nothing,
        "ipc_collect": _nothing,
        "utilization": lambda *_: 0,
        "memory_usage": lambda *_: 0,
        "temperature": lambda *_: 30,
        "power_draw": lambda *_: 0,
        "clock_rate": lambda *_: 0,
        "list_gpu_processes": lambda *_: "",
        "set_per_process_memory_fraction": _nothing,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": _nothing,
        "current_blas_handle": lambda: 0,
        "Stream": _Stream,
        "ExternalStream": _Stream,
        "Event": _Event,
        "stream": _scope,
        "set_stream": _nothing,
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "manual_seed": _nothing,
        "manual_seed_all": _nothing,
        "seed": _nothing,
        "seed_all": _nothing,
        "initial_seed": lambda: 0,
        "get_rng_state": lambda *_: torch.empty(16, dtype=torch.uint8),
        "get_rng_state_all": lambda: [torch.empty(16, dtype=torch.uint8)],
        "set_rng_state": _nothing,
        "set_rng_state_all": _nothing,
    }


def _accelerator(memory: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    """Returns the answers of ``torch.accelerator``."""
    stream = _Stream()
    return {
        **memory,
        "is_available": lambda: True,
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "device_count": lambda: 1,
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": _nothing,
        "set_device_idx": _nothing,
        "device_index": _scope,
        "current_stream": lambda *_: stream,
        "set_stream": _nothing,
        "synchronize": _nothing,
        "get_memory_info": memory["mem_get_info"],
    }


def _tensors() -> dict[str, Any]:
    """Returns what fake tensors cannot do, and real ones do without memory of the device."""
    return {
        # Pinned memory is the host's.
        "pin_memory": lambda tensor, *_, **__: tensor,
        "is_pinned": lambda *_, **__: False,
        "record_stream": lambda *_: None,
        "tolist": _without_values(_ones, torch.Tensor.tolist),
        "numpy": _without_values(_array, torch.Tensor.numpy),
        "__array__": _without_values(_array, torch.Tensor.__array__),
    }


def _formatted(format_: Callable[[Any, str], str]) -> Callable[[Any, str], str]:
    """Returns ``Tensor.__format__``, which formats the value of a single number on the device."""

    def formatted(tensor: torch.Tensor, form: str) -> str:
        if tensor.dim() == 0 and form and isinstance(tensor, FakeTensor):
            return format(tensor.item(), form)
        return format_(tensor, form)

    return formatted


def _true(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a test of values, which is true."""

    def outcome(*arguments: Any, **named: Any) -> Any:
        tested = function(*arguments, **named)
        if isinstance(tested, FakeTensor):
            tested._cachalot_all = True  # type: ignore[attr-defined]
        return tested

    return outcome


@contextlib.contextmanager
def on_a_gpu(recorder: Any, total: int | None = None) -> Iterator[None]:
    """Lets ``torch.cuda`` answer as on a GPU with nothing to do, and writes no checkpoints."""
    total = recorder.gpu.total_bytes if total is None else total
    memory = _memory(recorder, total)
    everything: list[tuple[Any, dict[str, Any]]] = [
        (torch.cuda, {**_device(recorder.gpu, total), **memory}),
        (torch.cuda.memory, memory),
        (torch.cuda.random, _device(recorder.gpu, total)),
        (getattr(torch, "accelerator", None), _accelerator(memory)),
        (torch.cuda.nvtx, dict.fromkeys(("range_push", "range_pop", "mark", "range_start", "range_end"), _nothing)),
        (torch.cuda.profiler, {"start": _nothing, "stop": _nothing}),
        (torch.Tensor, {**_tensors(), "__format__": _formatted(torch.Tensor.__format__)}),
        (torch.Tensor, {"isfinite": _true(torch.Tensor.isfinite)}),
        (torch, {"isfinite": _true(torch.isfinite)}),
        # The value that decides is 1, as every other: not finite. It would leave out each step of
        # the optimizer.
        (torch.amp.grad_scaler.GradScaler, {"_maybe_opt_step": _step}),
        # They make a tensor on the device, so that the context exists.
        (fake_tensor, {"init_gpu_context": _nothing, "init_cuda_context": _nothing}),
        *stand_ins(recorder),
    ]
    with contextlib.ExitStack() as patches:
        for owner, answers in everything:
            for name, answer in answers.items():
                if hasattr(owner, name):
                    patches.enter_context(mock.patch.object(owner, name, answer))
        patches.enter_context(counted_steps(recorder))
        yield
