"""The answers of ``torch.cuda`` while a program is predicted: those of an H100 that does
nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._subclasses import fake_tensor

NAME = "NVIDIA H100 80GB HBM3"
CAPABILITY = (9, 0)
PROCESSORS = 132
"""Multiprocessors of an H100 and of an H200."""
TOTAL_BYTES = 80 << 30
"""Its memory, where no limit is given."""


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
        "memory_snapshot": lambda *_, **__: [],
        "mem_get_info": lambda *_: (max(total - allocated(), 0), total),
        "empty_cache": lambda: recorder.empty_cache(),
    }


def _device(total: int) -> dict[str, Any]:
    """Returns what is asked about the device, and what it is told to do."""
    properties = SimpleNamespace(
        name=NAME,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=total,
        multi_processor_count=PROCESSORS,
        max_threads_per_multi_processor=2048,
        warp_size=32,
        L2_cache_size=50 << 20,
        is_integrated=0,
        is_multi_gpu_board=0,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        gcnArchName=NAME,
    )
    stream = _Stream()
    return {
        "is_available": lambda: True,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _: None,
        "device": lambda *_: contextlib.nullcontext(),
        "device_of": lambda *_: contextlib.nullcontext(),
        "get_device_name": lambda *_: NAME,
        "get_device_capability": lambda *_: CAPABILITY,
        "get_device_properties": lambda *_: properties,
        "get_arch_list": lambda: ["sm_90"],
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda *_: None,
        "ipc_collect": lambda: None,
        "utilization": lambda *_: 0,
        "Stream": _Stream,
        "ExternalStream": _Stream,
        "Event": _Event,
        "stream": lambda _: contextlib.nullcontext(),
        "set_stream": lambda _: None,
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "manual_seed": lambda _: None,
        "manual_seed_all": lambda _: None,
        "seed": lambda: None,
        "seed_all": lambda: None,
        "initial_seed": lambda: 0,
        "get_rng_state": lambda *_: torch.empty(16, dtype=torch.uint8),
        "get_rng_state_all": lambda: [torch.empty(16, dtype=torch.uint8)],
        "set_rng_state": lambda *_, **__: None,
        "set_rng_state_all": lambda *_: None,
    }


def _tensors() -> dict[str, Any]:
    """Returns what fake tensors cannot do, and real ones do without memory of the device."""
    return {
        # Pinned memory is the host's.
        "pin_memory": lambda tensor, *_, **__: tensor,
        "is_pinned": lambda *_, **__: False,
        "record_stream": lambda *_: None,
        "tolist": _ones,
        "numpy": _array,
        "__array__": _array,
    }


@contextlib.contextmanager
def on_a_gpu(recorder: Any, total: int | None = None) -> Iterator[None]:
    """Lets ``torch.cuda`` answer as on a GPU with nothing to do, and writes no checkpoints."""
    total = TOTAL_BYTES if total is None else total
    with contextlib.ExitStack() as patches:
        for name, stand_in in {**_device(total), **_memory(recorder, total)}.items():
            if hasattr(torch.cuda, name):
                patches.enter_context(mock.patch.object(torch.cuda, name, stand_in))
            if hasattr(torch.cuda.memory, name):
                patches.enter_context(mock.patch.object(torch.cuda.memory, name, stand_in))
        for name, stand_in in _tensors().items():
            patches.enter_context(mock.patch.object(torch.Tensor, name, stand_in))
        patches.enter_context(mock.patch.object(torch, "save", lambda *_, **__: None))
        # The value that decides is 1, as every other: not finite. It would leave out each step of
        # the optimizer.
        scaler = torch.amp.grad_scaler.GradScaler
        patches.enter_context(mock.patch.object(scaler, "_maybe_opt_step", _step))
        for name in ("init_gpu_context", "init_cuda_context"):
            # It makes a tensor on the device, so that the context exists.
            if hasattr(fake_tensor, name):
                patches.enter_context(mock.patch.object(fake_tensor, name, lambda *_: None))
        yield
