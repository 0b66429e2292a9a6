"""The memory of a training step before it runs: the requests of fake tensors, replayed exactly."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from .. import _cudnn, _no_gpu
from .._files import command_path
from ..errors import CachalotError
from . import _convolutions, _host_values
from ._gpus import GPUS, USUAL, Gpu
from ._lines import own_line
from ._on_a_gpu import on_a_gpu

LEFT_OUT = (
    "the CUDA context and the code of libraries (some hundred MiB, outside of the allocator)",
    "workspaces of cuDNN for recurrent layers and attention, and other buffers inside kernels, such as those of sorts",
    "memory of NCCL and of other libraries that allocate by themselves",
)
"""Memory that every prediction leaves out. :func:`left_out` adds what depends on the machine."""


def left_out() -> tuple[str, ...]:
    """Returns what a prediction on this machine leaves out, or takes from another machine."""
    library = _cudnn.installed()
    if library is None:
        needs = f"cuDNN {_cudnn.named(_cudnn.LEAST_VERSION)} or later, which is not installed"
        return (f"workspaces of convolutions: {needs} (pip install nvidia-cudnn-cu13)", *LEFT_OUT)
    used = f"those of cuDNN {_cudnn.named(library.version)} on an H100"
    return (f"another version of cuDNN or another GPU: workspaces of convolutions are {used}", *LEFT_OUT)


_aten = torch.ops.aten

_PRODUCTS = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.baddbmm.default,
    _aten._scaled_mm.default,
    _aten._addmm_activation.default,
}
"""The operations that need a handle of cuBLAS. A thread has its own handle for each stream, so the
backward pass has another one."""


@dataclass(frozen=True)
class Prediction:
    """The memory of a program under a policy."""

    policy: str
    """The name of the policy."""
    config: str
    """The settings, without the policy."""
    peak_allocated_bytes: int
    """Bytes of all blocks at the highest, rounded as the policy rounds."""
    peak_reserved_bytes: int
    """Bytes reserved from the device at the highest."""
    ooms: int
    """Requests that run out of memory under the limit."""
    first_failed_request: int | None
    """The number of the first of them, from 1."""


class Recorder(TorchDispatchMode):
    """Records requests and frees of the storages of fake CUDA tensors."""

    def __init__(self, workspace_bytes: int | None = None, gpu: str = USUAL, most_steps: int = 0) -> None:
        super().__init__()
        self.gpu: Gpu = GPUS[gpu]
        """The GPU as which ``torch.cuda`` answers."""
        self.events: list[tuple[str, int, int]] = []
        """Requests ``("a", block, bytes)``, frees ``("f", block, 0)``, and calls that empty the
        cache ``("e", 0, 0)``, in order."""
        self.sites: list[str] = []
        """For each event, the part of a step and the operation, and for a request the line of the
        script: ``forward aten.mm.default train.py:12``."""
        self.live_bytes = self.peak_bytes = 0
        """Bytes of all blocks, each rounded up to 512: now, and at the most since the program reset
        it."""
        self.optimizing = self.steps = 0
        """The number of optimizers that are inside ``step``, and of all steps so far."""
        self.most_steps = most_steps
        """Batches of a loader, and a third of the steps of optimizers, after which a script ends if
        it needs no more memory. It runs to its end if this is 0."""
        self.backward_requests = 0
        """Requests of backward passes."""
        self.batch: int | None = None
        """The batch of the first loader that was iterated."""
        self._sizes: dict[int, int] = {}
        self._workspace_bytes = self.gpu.workspace_bytes if workspace_bytes is None else workspace_bytes
        self._storages: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._handles: set[int] = set()
        self._lock = threading.RLock()
        self._thread = threading.get_ident()
        self._operation = ""
        self._blocks = 0
        self._noted: set[str] = set()
        self._tried: set[Any] = set()
        self._highest_bytes = self._highest_step = 0

    def is_enough(self) -> bool:
        """Returns whether enough steps were made, of which the latest needed no more memory."""
        settled = self.steps - self._highest_step >= self.most_steps
        return 0 < 3 * self.most_steps <= self.steps and settled

    def note(self, what: str) -> None:
        """Prints, once, what a prediction does in another way than a GPU, with the line of the
        script."""
        if what not in self._noted:
            self._noted.add(what)
            line = own_line()
            print(f"note{f' at {line}' if line else ''}: {what}", file=sys.stderr)

    def request(self, size: int) -> int:
        """Records a request, and returns the number of the block."""
        with self._lock:
            self._blocks += 1
            part = self._part()
            self.backward_requests += part == "backward"
            self._add(("a", self._blocks, size), f"{part} {self._operation} {own_line() or ''}")
            self._sizes[self._blocks] = _rounded(size, 512)
            self.live_bytes += self._sizes[self._blocks]
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
            if self.live_bytes > self._highest_bytes:
                self._highest_bytes, self._highest_step = self.live_bytes, self.steps
            return self._blocks

    def free(self, block: int) -> None:
        """Records a free."""
        with self._lock:
            self._add(("f", block, 0), self._part())
            self.live_bytes -= self._sizes.pop(block)

    def empty_cache(self) -> None:
        """Records a call of ``torch.cuda.empty_cache``."""
        with self._lock:
            self._add(("e", 0, 0), self._part())

    def _add(self, event: tuple[str, int, int], site: str) -> None:
        """Adds an event with its place in the program. The lock is held."""
        self.events.append(event)
        self.sites.append(site.strip())

    def _part(self) -> str:
        """Returns the part of a step that is running. PyTorch runs a backward pass on another
        thread."""
        if self.optimizing:
            return "optimizer"
        return "forward" if threading.get_ident() == self._thread else "backward"

    def watch(self, tensor: torch.Tensor) -> None:
        """Records the storage of a tensor, unless it is known or empty, and its free when it
        ends."""
        if tensor.device.type != "cuda" or tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        if storage in self._storages or storage.nbytes() == 0:
            return
        block = self.request(storage.nbytes())
        self._storages[storage] = block
        weakref.finalize(storage, self.free, block).atexit = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation on fake tensors, and records the new storages."""
        kwargs = kwargs or {}
        with_values = _host_values.run(func, args, kwargs)
        if with_values is not None:
            return with_values
        self._operation = str(func)
        if func is _aten._local_scalar_dense.default:
            # The value is not known. A loss that is printed does not change the memory. A mask is
            # whole.
            self.note("the value of a tensor is asked for, and a prediction has none: it is taken to be 1")
            kind = args[0].dtype
            if kind == torch.bool:
                return getattr(args[0], "_cachalot_all", False)
            return 1.0 if kind.is_floating_point else 1
        outcome = func(*args, **kwargs)
        if func is _aten.all.default:
            outcome._cachalot_all = True
        copies = [self.request(size) for size in _copies(func, args)]
        if func in (_convolutions.FORWARD, _convolutions.BACKWARD) and args[0].device.type == "cuda":
            self._convolve(_convolutions.steps(func, args, outcome, self._tried))
        for value in tree_iter(outcome):
            if isinstance(value, torch.Tensor):
                self.watch(value)
        if func in _PRODUCTS:
            self._use_handle(outcome)
        temporaries = _TEMPORARIES.get(func)
        if temporaries is not None and args[0].device.type == "cuda":
            for block in reversed([self.request(size) for size in temporaries(args)]):
                self.free(block)
        for block in reversed(copies):
            self.free(block)
        return outcome

    def _convolve(self, steps: Iterator[_convolutions.Step]) -> None:
        """Records what a convolution requests."""
        copies = []
        for kind, value in steps:
            if kind == "output":
                self.watch(value)
            elif value > 0:
                block = self.request(value)
                if kind == "copy":
                    copies.append(block)
                else:
                    self.free(block)
        for block in copies:
            self.free(block)

    def _use_handle(self, product: torch.Tensor) -> None:
        """Records the workspace of a thread's handle of cuBLAS at its first use. It is never
        freed."""
        thread = threading.get_ident()
        if product.device.type == "cuda" and thread not in self._handles:
            self._handles.add(thread)
            self.request(self._workspace_bytes)

    def lines(self) -> str:
        """Returns the events as a list of requests for ``cachalot predict``."""
        forms = {"a": "a,{0},{1},0,{2}", "f": "f,{0},,,{2}", "e": "e,,,,"}
        told = zip(self.events, self.sites, strict=True)
        rows = [forms[kind].format(block, size, site.replace(",", " ")) for (kind, block, size), site in told]
        return "\n".join(["request,block,size,stream,site", *rows, ""])


def _rounded(number: int, to: int) -> int:
    """Rounds up to a multiple."""
    return -(-number // to) * to


def _flash_backward(args: Any) -> list[int]:
    """Returns the buffers of flash attention's backward pass: sums of rows, and the gradient of the
    queries in single precision."""
    batch, heads, length, width = args[1].shape
    length, width = _rounded(length, 128), _rounded(width, 32 if width <= 128 else 64)
    return [4 * batch * heads * length, 4 * batch * heads * length * width]


def _power(number: int, most: int) -> int:
    """Returns the largest power of two that is neither above the number nor above ``most``."""
    return min(1 << (number.bit_length() - 1), most)


def _column_sum(args: Any) -> list[int]:
    """Returns the buffers of a sum over the leading dimensions, such as the gradient of a bias:
    partial sums of the thread blocks that share an output, and a counter for each block of
    outputs. The arithmetic is that of PyTorch's reduction for contiguous inputs and vectors of
    four outputs."""
    tensor, dimensions = args[0], args[1]
    if not dimensions or not tensor.is_contiguous():
        return []
    leading = sorted(dimension % tensor.dim() for dimension in dimensions)
    if leading != list(range(len(leading))) or len(leading) == tensor.dim():
        return []
    inputs, outputs = math.prod(tensor.shape[: len(leading)]), math.prod(tensor.shape[len(leading) :])
    if outputs < 128 or outputs % 4 or inputs == 0:
        return []
    threads, vector = 512 // 4, 4
    width = min(_power(outputs // vector, threads), 32)
    height = min(_power(inputs, threads), threads // width)
    if inputs < 256 and inputs < 16 * height:
        return []
    values, blocks = -(-inputs // height), -(-(outputs // vector) // width)
    target = GPUS[USUAL].processors * (2048 // (width * height))
    if values < 16 or blocks > target:
        return []
    shared = max(min(-(-target // blocks), -(-values // 16)), -(-values // 256))
    return [4 * outputs * shared * width * vector, 4 * blocks] if shared > 1 else []


def _copy(args: Any) -> list[int]:
    """Returns the copy of a gradient that is not contiguous, such as a part of the gradient of
    ``cat``."""
    return [] if args[0].is_contiguous() else [args[0].numel() * args[0].element_size()]


_CONTIGUOUS: dict[Any, int] = {_aten.native_layer_norm.default: 1, _aten.native_layer_norm_backward.default: 2}
"""Operations that first copy those of their first operands that are not contiguous, and the number
of these."""


def _copies(func: Any, args: Any) -> list[int]:
    """Returns the copies that an operation makes before its outputs, in bytes."""
    operands = args[: _CONTIGUOUS.get(func, 0)]
    return [size for operand in operands if operand.device.type == "cuda" for size in _copy((operand,))]


_TEMPORARIES: dict[Any, Callable[[Any], list[int]]] = {
    _aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    _aten.sum.dim_IntList: _column_sum,
    _aten.upsample_nearest1d_backward.default: _copy,
    _aten.upsample_nearest2d_backward.default: _copy,
    _aten.upsample_nearest3d_backward.default: _copy,
    _aten.upsample_bilinear2d_backward.default: _copy,
    _aten.upsample_trilinear3d_backward.default: _copy,
}
"""Buffers that an operation requests and frees itself, in bytes, by operation."""


@contextlib.contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    """Makes decisions that depend on a GPU as on one: optimizers fuse their loops, autocast is on,
    and attention of 16 bits is flash attention."""
    optimizers = importlib.import_module("torch.optim.optimizer")
    amp: Any = importlib.import_module("torch.cuda.amp.common")
    native: Any = torch._C
    module: Any = torch.nn.Module
    saved = (optimizers._foreach_supported_types[:], amp.amp_definitely_not_available)
    attention = torch.nn.functional.scaled_dot_product_attention
    bf16 = torch.cuda.is_bf16_supported
    optimizers._foreach_supported_types.append(FakeTensor)
    amp.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda *_, **__: True
    torch.nn.functional.scaled_dot_product_attention = _attention(attention)
    mover, move = _Mover(), module._apply
    tracing = _transformers()
    is_fake = getattr(tracing, "is_fake_tensor", None)
    if is_fake is not None:
        # The library leaves out what it decides by values, as if a graph were traced.
        tracing.is_fake_tensor = lambda _: False
    select = native._select_conv_backend
    if not torch.cuda.is_available():
        # The choice asks the GPU for its properties.
        native._select_conv_backend = lambda *_, **__: native._ConvBackend.Cudnn
    module._apply = lambda module, function, recurse=True: mover.apply(module, function, recurse)
    try:
        yield
    finally:
        optimizers._foreach_supported_types[:] = saved[0]
        amp.amp_definitely_not_available = saved[1]
        torch.cuda.is_bf16_supported = bf16
        torch.nn.functional.scaled_dot_product_attention = attention
        module._apply = move
        native._select_conv_backend = select
        if is_fake is not None:
            tracing.is_fake_tensor = is_fake


def _transformers() -> Any:
    """Returns the module of transformers that asks for fake tensors, or None."""
    try:
        return importlib.import_module("transformers.utils.import_utils")
    except ImportError:
        return None


class _Mover:
    """Moves the parameters of modules to another device or type, as ``torch.nn.Module._apply``
    does. That exchanges the contents of two fake tensors, which PyTorch refuses; here the module
    gets new parameters. A parameter that modules share stays shared."""

    def __init__(self) -> None:
        self._depth = 0
        self._moved: dict[int, tuple[torch.nn.Parameter, torch.nn.Parameter]] = {}

    def apply(self, module: torch.nn.Module, function: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
        """Stands in for ``torch.nn.Module._apply``."""
        self._depth += 1
        try:
            for child in module.children() if recurse else ():
                child._apply(function)
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = self._move(parameter, function)
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = function(buffer)
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._moved.clear()
        return module

    def _move(self, parameter: torch.nn.Parameter, function: Callable[[Any], Any]) -> torch.nn.Parameter:
        """Returns the moved parameter, which is the parameter itself if nothing changes."""
        if id(parameter) not in self._moved:
            with torch.no_grad():
                applied = function(parameter)
            same = applied is parameter or applied.untyped_storage()._cdata == parameter.untyped_storage()._cdata
            moved = parameter if same else torch.nn.Parameter(applied, parameter.requires_grad)
            # The old parameter is kept until the end, so that no other object gets its number.
            self._moved[id(parameter)] = (moved, parameter)
        return self._moved[id(parameter)][0]


def _attention(otherwise: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Returns attention with the kernels that PyTorch chooses on a GPU."""

    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """Stands in for ``torch.nn.functional.scaled_dot_product_attention``."""
        if torch.is_autocast_enabled("cuda") and query.device.type == "cuda":
            kind = torch.get_autocast_dtype("cuda")
            query, key, value = (tensor.to(kind) for tensor in (query, key, value))
            if attn_mask is not None and attn_mask.is_floating_point():
                attn_mask = attn_mask.to(kind)
        if query.device.type != "cuda" or query.dim() != 4:
            return otherwise(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        enabled = torch.backends.cuda
        uses_flash = enabled.flash_sdp_enabled() and query.dtype != torch.float32 and attn_mask is None
        if not enabled.mem_efficient_sdp_enabled() and not (uses_flash and query.shape[-1] <= 256):
            # Attention that is written out, as under `sdpa_kernel(SDPBackend.MATH)`.
            math = _aten._scaled_dot_product_attention_math
            arguments = (query, key, value, attn_mask, dropout_p, is_causal)
            written: torch.Tensor = math(*arguments, scale=scale, enable_gqa=enable_gqa)[0]
            return written
        if uses_flash and query.shape[-1] <= 256:
            if key.shape[1] != query.shape[1] and not enable_gqa:
                raise ValueError("query and key have different numbers of heads")
            width = query.shape[-1]
            flash = _aten._scaled_dot_product_flash_attention
            factor = width**-0.5 if scale is None else scale
            if width % 8:
                query, key, value = (torch.nn.functional.pad(t, (0, 8 - width % 8)) for t in (query, key, value))
            padded: torch.Tensor = flash(query, key, value, dropout_p, is_causal, False, scale=factor)[0]
            return padded[..., :width]
        if enable_gqa and key.shape[1] != query.shape[1]:
            repeats = query.shape[1] // key.shape[1]
            key, value = (tensor.repeat_interleave(repeats, 1) for tensor in (key, value))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            bias = torch.zeros(attn_mask.shape, dtype=query.dtype, device=query.device)
            attn_mask = bias.masked_fill(~attn_mask, float("-inf"))
        if attn_mask is not None:
            attn_mask = attn_mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        needs = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
        efficient = _aten._scaled_dot_product_efficient_attention
        result: torch.Tensor = efficient(query, key, value, attn_mask, needs, dropout_p, is_causal, scale=scale)[0]
        return result

    return attend


class _Mode(FakeTensorMode):
    """Fake tensors that are never moved to a device that is not there: ``torch.cuda`` says that it
    is, and PyTorch asks it."""

    @property
    def avoid_device_init(self) -> bool:
        """Returns that there is no device."""
        return True


def record(
    step: Callable[[], Any],
    workspace_bytes: int | None = None,
    *,
    limit_bytes: int | None = None,
    gpu: str = USUAL,
) -> Recorder:
    """Calls ``step`` with fake tensors, and returns its requests and frees.

    ``step`` makes the model, the optimizer and the data itself, on the device ``"cuda"``. Tensors
    there have no memory and no values: ``.item()`` returns 1 (``False`` for a boolean, ``True`` for
    the outcome of ``all()``), ``.tolist()`` and ``.numpy()`` return the same for each element, and
    operations whose shapes depend on values fail. Small tensors of the host have values.
    ``torch.cuda`` answers as on a GPU of :data:`GPUS`, or with ``limit_bytes`` of memory, and
    ``torch.save`` writes nothing.
    """
    recorder = Recorder(workspace_bytes, gpu)
    record_into(recorder, step, limit_bytes)
    return recorder


def record_into(recorder: Recorder, step: Callable[[], Any], limit_bytes: int | None = None) -> None:
    """Calls ``step`` with fake tensors. After an exception of ``step``, the recorder has what it
    requested so far."""
    _no_gpu.prepare()
    mode = _Mode(allow_non_fake_inputs=True)
    with _as_on_a_gpu(), on_a_gpu(recorder, limit_bytes), mode, recorder:
        step()


def predict(
    step: Callable[[], Any],
    *,
    limit_bytes: int | None = None,
    policies: tuple[str, ...] = (),
    configs: tuple[str, ...] = (),
    workspace_bytes: int | None = None,
    gpu: str = USUAL,
) -> list[Prediction]:
    """Predicts the memory of a training step, without a GPU.

    Args:
        step: makes the model, the optimizer and the data on the device ``"cuda"``, and trains one
            step or more. PyTorch's FakeTensorMode runs it.
        limit_bytes: the memory of the GPU. Requests beyond are counted as failed.
        policies: the policies of cachalot; all but ``planned`` without this. ``caching`` is
            PyTorch's own allocator.
        configs: configurations besides the defaults.
        workspace_bytes: the workspace of a cuBLAS handle, if it is not that of the GPU:
            ``HOPPER_WORKSPACE`` on compute capability 9.0, or ``OTHER_WORKSPACE``.
        gpu: the GPU as which ``torch.cuda`` answers: a name of :data:`GPUS`.

    Returns:
        A prediction for each policy and configuration. They leave out what :data:`LEFT_OUT` lists.
    """
    recorder = record(step, workspace_bytes, limit_bytes=limit_bytes, gpu=gpu)
    return replay(recorder, limit_bytes=limit_bytes, policies=policies, configs=configs)


def replay(
    recorder: Recorder,
    *,
    limit_bytes: int | None = None,
    policies: tuple[str, ...] = (),
    configs: tuple[str, ...] = (),
) -> list[Prediction]:
    """Replays recorded requests through every policy."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.csv"
        file.write_text(recorder.lines())
        arguments = [command_path(), "predict", "--json", str(file)]
        arguments += [f"--policy={','.join(policies)}"] if policies else []
        arguments += [f"--config={config}" for config in configs]
        arguments += [f"--limit={limit_bytes}"] if limit_bytes is not None else []
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CachalotError(done.stderr.strip())
    names = Prediction.__dataclass_fields__
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [Prediction(**{name: line[name] for name in names}) for line in lines]
