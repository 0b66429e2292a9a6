"""What replaces PyTorch's loaders, checkpoints, compiler and graphs while a program is
predicted."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer
from torch.utils import data
from torch.utils._pytree import tree_map_only

_ANSWERS = list[tuple[Any, dict[str, Any]]]
"""Owners of names, and what these names are during a prediction."""


def stand_ins(recorder: Any) -> _ANSWERS:
    """Returns all of them."""
    return [*_loaders(recorder), *_checkpoints(recorder), *_compiler(recorder), *_graphs(recorder), *_parallel()]


class Enough(BaseException):
    """Ends a script after steps that needed no more memory."""


@contextlib.contextmanager
def counted_steps(recorder: Any) -> Iterator[None]:
    """Tells the recorder when an optimizer steps."""

    def begin(*_: Any) -> None:
        recorder.optimizing += 1

    def end(*_: Any) -> None:
        recorder.optimizing -= 1
        recorder.steps += 1
        if recorder.is_enough():
            raise Enough

    hooks = [
        optimizer.register_optimizer_step_pre_hook(begin),
        optimizer.register_optimizer_step_post_hook(end),
    ]
    try:
        yield
    finally:
        recorder.optimizing = 0
        for hook in hooks:
            hook.remove()


class _Bounded:
    """The batches of a loader, up to a number. More follow while each leaves more memory in use
    than those before, or until optimizers have made three steps after a backward pass."""

    def __init__(self, batches: Any, recorder: Any) -> None:
        self._batches, self._recorder = batches, recorder
        self._count = self._highest = 0
        self._steps, self._backward = recorder.steps, recorder.backward_requests

    def __iter__(self) -> Any:
        """Returns itself."""
        return self

    def __next__(self) -> Any:
        """Returns the next batch."""
        recorder, self._count = self._recorder, self._count + 1
        trains = recorder.backward_requests > self._backward and recorder.steps - self._steps < _LEAST_STEPS
        settled = recorder.live_bytes <= self._highest and not trains
        self._highest = max(self._highest, recorder.live_bytes)
        if self._count > recorder.most_steps and settled:
            recorder.note(f"a loader ends after {self._count - 1} batches: more need no more memory (--steps)")
            raise StopIteration
        return next(self._batches)

    def __len__(self) -> int:
        """Returns the number of all batches."""
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        """Returns what the loader's own iterator has."""
        return getattr(self._batches, name)


_LEAST_STEPS = 3
"""Steps of an optimizer in a loop over a loader: the second has the optimizer's state, and the
third repeats the second."""


def _loaders(recorder: Any) -> _ANSWERS:
    """Loaders without workers and without pinned memory: fake tensors cannot go through pipes, and
    the memory is the host's."""
    loader: Any = data.DataLoader
    make, iterate = loader.__init__, loader.__iter__
    signature = inspect.signature(make)

    @functools.wraps(make)
    def made(self: Any, *arguments: Any, **named: Any) -> None:
        given = signature.bind(self, *arguments, **named).arguments
        given.pop("self", None)
        for name in ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "timeout"):
            given.pop(name, None)
        given.pop("multiprocessing_context", None)
        make(self, **given)

    def iterated(self: Any) -> Any:
        if recorder.batch is None:
            recorder.batch = self.batch_size
        return _Bounded(iterate(self), recorder) if recorder.most_steps else iterate(self)

    return [(loader, {"__init__": made, "__iter__": iterated})]


class _Saved:
    """A tensor of a checkpoint, without its memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device = tensor.device
        self.is_parameter = isinstance(tensor, torch.nn.Parameter)
        self.requires_grad = tensor.requires_grad
        self.on_host = torch.empty_like(tensor.detach(), device="cpu") if isinstance(tensor, FakeTensor) else tensor

    def load(self, device: torch.device | None) -> torch.Tensor:
        """Returns the tensor on its device, or on another."""
        tensor = self.on_host.detach().to(self.device if device is None else device)
        return torch.nn.Parameter(tensor, self.requires_grad) if self.is_parameter else tensor


def _checkpoints(recorder: Any) -> _ANSWERS:
    """Checkpoints that are kept in place of files: a prediction writes none, and reads what it
    would have written."""
    kept: dict[Any, Any] = {}
    load = torch.load

    def key(file: Any) -> Any:
        return str(Path(file).absolute()) if isinstance(file, (str, os.PathLike)) else id(file)

    def save(what: Any, file: Any, *_: Any, **__: Any) -> None:
        recorder.note("a checkpoint is kept in place of a file: a prediction writes none")
        kept[key(file)] = tree_map_only(torch.Tensor, _Saved, what)

    def loaded(file: Any, map_location: Any = None, *arguments: Any, **named: Any) -> Any:
        device = torch.device(map_location) if isinstance(map_location, (str, int, torch.device)) else None
        if key(file) in kept:
            return tree_map_only(_Saved, lambda saved: saved.load(device), kept[key(file)])
        found = load(file, "cpu", *arguments, **named)
        if device is None or device.type == "cpu":
            return found
        return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), found)

    answers: _ANSWERS = [(torch, {"save": save, "load": loaded})]
    with contextlib.suppress(ImportError):
        import safetensors.torch as safetensors

        def save_file(what: Any, file: Any, *_: Any, **__: Any) -> None:
            save(what, file)

        answers.append((safetensors, {"save_file": save_file}))
    return answers


def _compiler(recorder: Any) -> _ANSWERS:
    """Programs that are not compiled: fake tensors have nothing that a compiler could run."""

    def compiled(model: Any = None, *_: Any, **__: Any) -> Any:
        recorder.note("torch.compile is left out: the program is predicted as it is written")
        return model if model is not None else lambda function: function

    def in_place(_: Any, *__: Any, **___: Any) -> None:
        compiled()

    return [(torch, {"compile": compiled}), (torch.nn.Module, {"compile": in_place})]


class _Graph:
    """A graph of CUDA, which captures and replays nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Does nothing."""

    capture_begin = capture_end = instantiate = replay = reset = enable_debug_mode = debug_dump = _nothing

    def pool(self) -> tuple[int, int]:
        """Returns the graph's pool."""
        return (0, 1)


def _graphs(recorder: Any) -> _ANSWERS:
    """Graphs of CUDA. What they capture is requested as outside of a graph."""

    def graph(*_: Any, **__: Any) -> Any:
        recorder.note("a CUDA graph is left out: what it captures is requested as outside of a graph")
        return contextlib.nullcontext()

    def same(callables: Any, *_: Any, **__: Any) -> Any:
        graph()
        return callables

    answers: dict[str, Any] = {
        "CUDAGraph": _Graph,
        "graph": graph,
        "make_graphed_callables": same,
        "graph_pool_handle": lambda: (0, 1),
    }
    return [(torch.cuda, answers)]


class _AnyGenerator(type):
    """Makes every generator an instance of the replacement."""

    def __instancecheck__(cls, instance: Any) -> bool:
        """Returns whether an object is a generator of PyTorch."""
        return isinstance(instance, torch._C.Generator)


class _Generator(metaclass=_AnyGenerator):
    """``torch.Generator``, which is the host's for the device as well."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        """Makes a generator of the host."""
        return torch._C.Generator()


def _parallel() -> _ANSWERS:
    """What spreads over several GPUs, on the only one, and generators of random numbers."""

    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        inputs, named = tree_map_only(torch.Tensor, lambda tensor: tensor.to("cuda"), (inputs, named))
        return self.module(*inputs, **named)

    return [(torch.nn.DataParallel, {"forward": forward}), (torch, {"Generator": _Generator})]
