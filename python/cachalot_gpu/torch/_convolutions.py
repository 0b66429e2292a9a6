"""The requests of a convolution on a GPU: its outputs, the workspaces of cuDNN, and copies of
operands."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from .. import _cudnn

_aten = torch.ops.aten

FORWARD, BACKWARD = _aten.convolution.default, _aten.convolution_backward.default
"""The operations that are asked about here."""

_KINDS = {
    torch.float32: _cudnn.FLOAT,
    torch.float64: _cudnn.DOUBLE,
    torch.float16: _cudnn.HALF,
    torch.bfloat16: _cudnn.BFLOAT16,
}

Step = tuple[str, Any]
"""``("output", tensor)``: an output is made. ``("bytes", size)``: a buffer is requested, and freed
at once. ``("copy", size)``: a buffer is requested, and freed when the operation ends."""


def steps(func: Any, args: Any, outcome: Any, tried: set[Any]) -> Iterator[Step]:
    """Returns the requests of a convolution on a GPU, in order. ``tried`` are the convolutions for
    which ``torch.backends.cudnn.benchmark`` has tried all engines."""
    if func is FORWARD:
        x, w, _, stride, padding, dilation, transposed, _, groups = args
        yield from _forward(_Call(x, w, stride, padding, dilation, transposed, groups, tried), outcome)
    else:
        y, x, w, _, stride, padding, dilation, transposed, _, groups, mask = args
        call = _Call(x, w, stride, padding, dilation, transposed, groups, tried)
        yield from _backward(call, y, outcome, mask)


class _Call:
    """The operands of a convolution. A line of one dimension is a picture with one row, as in
    PyTorch."""

    def __init__(
        self,
        x: Any,
        w: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        transposed: bool,
        groups: int,
        tried: set[Any],
    ) -> None:
        self.transposed, self.groups, self._tried = transposed, groups, tried
        self.x, self.w = _picture(x), _picture(w)
        spatial = self.x.dim() - 2
        self.stride, self.dilation = _each(stride, spatial, 1), _each(dilation, spatial, 1)
        self.padding = _each(padding, spatial, 0)
        # Fake tensors have the strides that tensors on a GPU have.
        self.format = torch.contiguous_format
        last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(self.x.dim())
        if last is not None and any(_is_last(tensor, last) for tensor in (self.x, self.w)):
            self.format = last

    def uses_cudnn(self) -> bool:
        """Returns whether cuDNN runs the convolution. PyTorch has its own kernels for depthwise
        convolutions with channels first, except those of half precision."""
        if self.x.dtype not in _KINDS or not torch.backends.cudnn.enabled:
            return False
        channels = self.x.shape[1]
        depthwise = channels == self.groups > 1 and self.w.shape[0] % channels == 0 and not self.transposed
        return not depthwise or self.format != torch.contiguous_format or self.x.dtype == torch.float16

    def workspaces(self, operation: int, output: Any) -> Iterator[Step]:
        """Returns the workspace of an operation, of which ``output`` is the output or its gradient,
        after that of the trials."""
        library = _cudnn.installed()
        if library is None or not self.uses_cudnn():
            return
        # cuDNN sees a transposed convolution as the gradient of a convolution.
        x, y = (output, self.x) if self.transposed else (self.x, output)
        convolution = _cudnn.Convolution(
            operation,
            self._tensor(x),
            self._tensor(self.w),
            self._tensor(y),
            self.stride,
            self.padding,
            self.dilation,
            torch.backends.cudnn.allow_tf32,
            torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled(),
        )
        if torch.backends.cudnn.benchmark and convolution not in self._tried:
            self._tried.add(convolution)
            yield "bytes", library.trials(convolution)
        size = _product(convolution)
        yield "bytes", (library.workspace(convolution) or 0) if size is None else size

    def copies(self, *tensors: Any) -> Iterator[Step]:
        """Returns the copies of operands that are not in the memory format of the convolution."""
        for tensor in tensors:
            if not tensor.is_contiguous(memory_format=self.format):
                yield "copy", tensor.numel() * tensor.element_size()

    def _tensor(self, tensor: Any) -> _cudnn.Tensor:
        """Describes a tensor in the memory format of the convolution."""
        sizes, order = tuple(tensor.shape), list(range(tensor.dim()))
        if self.format != torch.contiguous_format:
            order = [0, *order[2:], 1]
        strides, stride = [0] * len(order), 1
        for dimension in reversed(order):
            strides[dimension] = stride
            stride *= sizes[dimension]
        # A copy starts at the start of its memory.
        is_copy = not tensor.is_contiguous(memory_format=self.format)
        offset = 0 if is_copy else tensor.storage_offset() * tensor.element_size()
        return _cudnn.Tensor(sizes, tuple(strides), _KINDS[tensor.dtype], min(32, offset & -offset or 32))


def _forward(call: _Call, output: Any) -> Iterator[Step]:
    """Returns the requests of a forward pass."""
    yield from call.copies(call.x, call.w)
    yield "output", output
    operation = _cudnn.BACKWARD_DATA if call.transposed else _cudnn.FORWARD
    yield from call.workspaces(operation, _picture(output))


def _backward(call: _Call, gradient: Any, outputs: Any, mask: Any) -> Iterator[Step]:
    """Returns the requests of a backward pass: the gradients of the input, the filter and the
    bias."""
    y = _picture(gradient)
    yield from call.copies(y, call.x, call.w)
    data = _cudnn.FORWARD if call.transposed else _cudnn.BACKWARD_DATA
    for output, wanted, operation in zip(outputs, mask, (data, _cudnn.BACKWARD_FILTER, None)):
        if wanted:
            yield "output", output
            if operation is not None:
                yield from call.workspaces(operation, y)


def _product(convolution: _cudnn.Convolution) -> int | None:
    """Returns the workspace of a convolution that cuDNN leaves to cuBLAS. ``None`` for others.

    A convolution of single pixels is a product of matrices, and on tensor cores cuDNN leaves
    most of them to cuBLAS. It names the engine for it only with a GPU, so the rules here are
    those of measurements (cuDNN 9.19 on an H100, 14,000 such convolutions). The product has no
    workspace. The gradient of a filter with channels first is a product for each picture, added
    up in single precision; where those are much larger than the pictures, the pictures are
    transposed instead. So they are where rows of few pixels are not aligned.
    """
    x, w = convolution.x, convolution.w
    single = all(size == 1 for size in (*w.sizes[2:], *convolution.stride)) and not any(convolution.padding)
    if not single or x.sizes[1] != w.sizes[1] or x.kind == _cudnn.DOUBLE:
        return None
    if x.kind == _cudnn.FLOAT and not convolution.tf32:
        return None
    pictures, channels, outputs, pixels = x.sizes[0], w.sizes[1], w.sizes[0], math.prod(x.sizes[2:])
    if pictures == 1 or pixels == 1 or x.strides[1] == 1:
        return 0
    item = 4 if x.kind == _cudnn.FLOAT else 2
    is_aligned = pixels * item % 16 == 0
    if convolution.operation == _cudnn.BACKWARD_FILTER:
        most = item if is_aligned else item // 2
        is_product = 4 * outputs * channels <= most * pixels * (channels + outputs) * item
        return 4 * pictures * outputs * channels if is_product else None
    summed = channels if convolution.operation == _cudnn.FORWARD else outputs
    return 0 if is_aligned or summed <= 8 * pixels else None


def _picture(tensor: Any) -> Any:
    """Returns a line as a picture with one row."""
    return tensor.unsqueeze(2) if tensor.dim() == 3 else tensor


def _each(values: Any, spatial: int, first: int) -> tuple[int, ...]:
    """Returns a value for each dimension in space. A line has ``first`` for its one row."""
    each: tuple[int, ...] = tuple(values)
    each = each * spatial if len(each) == 1 and spatial > 2 else each
    return (first,) * (spatial - len(each)) + each


def _is_last(tensor: Any, last: Any) -> bool:
    """Returns whether a tensor has its channels last, and not also first."""
    return tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous()
