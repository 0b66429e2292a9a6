"""The workspaces of convolutions, from cuDNN's own choice of an engine, without a GPU.

cuDNN chooses the engine of a convolution, and with it the workspace, by rules that no document
has and that change with each version. Since version 9.8 it answers for a GPU that is only
described ("deviceless ahead-of-time compilation"). So the library that PyTorch would call is
asked: the answers are those of the installed version for the GPU described. No kernel is
compiled or launched.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

H100: dict[str, Any] = {
    "deviceName": "NVIDIA H100 80GB HBM3",
    "cudaDeviceId": 0,
    "deviceVer": 900,
    "driverVer": 13000,
    "multiProcessorCount": 132,
    "totalGlobalMem": 85_017_755_648,
    "smClockRateKHz": 1_980_000,
    "memClockRateKHz": 2_619_000,
    "l2CacheSize": 50 << 20,
    "warpSize": 32,
    "maxGridSize": [2**31 - 1, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "maxCtasPerSM": 32,
    "regsPerBlock": 65536,
    "maxRegistersPerSM": 65536,
    "maxSharedMemoryPerBlock": 48 << 10,
    "maxSharedMemoryPerBlockOptin": 227 << 10,
    "reservedSharedMemoryPerBlock": 1 << 10,
    "pciDeviceId": 0,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
}
"""An H100 with 80 GB as cuDNN describes it. The names are cuDNN's, the values the attributes of the
GPU."""

FORWARD, BACKWARD_FILTER, BACKWARD_DATA = 10, 11, 12
"""The operations, by cuDNN's number of the descriptor."""

FLOAT, DOUBLE, HALF, BFLOAT16 = 0, 1, 2, 9
"""The types of elements, by cuDNN's number."""

LEAST_VERSION = 90800
"""The first version of cuDNN that answers for a GPU that is not there."""

# The numbers of cuDNN's graph API, which its header fixes: types of descriptors, attributes, and
# types of values.
_CONVOLUTION, _ENGINE, _CONFIG, _HEURISTICS, _PLAN, _KNOB_CHOICE = 1, 2, 3, 4, 5, 7
_GRAPH, _TENSOR, _PROPERTIES = 15, 17, 38
_DATA_TYPE, _INT64, _FLOAT, _DOUBLE, _CONVOLUTION_MODE, _MODE, _KNOB = 1, 3, 4, 5, 7, 8, 9
_NOTE, _DESCRIPTOR, _CHAR = 11, 15, 24
_OPERANDS = {FORWARD: range(700, 706), BACKWARD_DATA: range(706, 712), BACKWARD_FILTER: range(712, 718)}
"""Attributes of an operation: alpha, beta, convolution, filter, input and output."""
_TENSOR_CORE, _DOWN_CONVERT, _NONDETERMINISTIC = 0, 1, 4
_INSTANT, _FALLBACK = 0, 2


_TILE_SIZE, _TILE_DEPTH, _WORKSPACE, _CLUSTER_ROWS, _CLUSTER_COLUMNS = 2, 13, 25, 27, 28
"""Knobs of engines."""

_TILES = {
    0: (128, 128),
    1: (128, 64),
    2: (128, 32),
    3: (256, 128),
    4: (256, 64),
    5: (64, 64),
    6: (128, 256),
    7: (64, 128),
    8: (64, 32),
    9: (64, 256),
    16: (256, 32),
    18: (64, 192),
    19: (128, 192),
    20: (256, 96),
}
"""Rows and columns of a tile by the value of the knob, as the names of the kernels tell (cuDNN
9.19)."""

_MULTIPROCESSORS = {1: 132, 2: 132, 3: 117, 4: 120, 5: 110, 6: 102, 7: 105, 8: 120, 16: 112}
"""Multiprocessors of an H100 that work, by the size of the clusters of thread blocks: the grids of
measured kernels."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a convolution: sizes, strides in elements, type and alignment in bytes."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    kind: int
    alignment: int = 32


@dataclass(frozen=True)
class Convolution:
    """A convolution as PyTorch asks cuDNN for it. ``x`` is the input or its gradient, ``y`` the
    output or its gradient, and ``w`` the filter or its gradient."""

    operation: int
    x: Tensor
    w: Tensor
    y: Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    tf32: bool = True
    deterministic: bool = False


class Refused(Exception):
    """cuDNN does not answer."""


def _tiles(convolution: Convolution, tile: tuple[int, int], cluster: tuple[int, int]) -> tuple[int, int]:
    """Returns the number of tiles of an output in whole clusters, and the number of products in a
    sum."""
    x, w, y = convolution.x.sizes, convolution.w.sizes, convolution.y.sizes
    taps = math.prod(w[2:])
    if convolution.operation == BACKWARD_FILTER:
        rows, columns, times, depth = w[0], w[1], taps, y[0] * math.prod(y[2:])
    elif convolution.operation == FORWARD:
        rows, columns, times, depth = y[0] * math.prod(y[2:]), w[0], 1, w[1] * taps
    else:
        rows, columns, times, depth = x[0] * math.prod(x[2:]), x[1], 1, w[0] * taps
    counts = (-(-rows // tile[0]), -(-columns // tile[1]) * times)
    across, down = (-(-count // size) * size for count, size in zip(counts, cluster))
    return across * down, depth


def _parts(tiles: int, steps: float, multiprocessors: int) -> int:
    """Returns the number of parts of split sums. Tiles that fill all multiprocessors are not split;
    the rest is, if every part has enough steps. The limits are fitted to 3,600 measured
    workspaces (cuDNN 9.19 on an H100), of which 78 % come out within 1 KiB."""
    rest = tiles if tiles < multiprocessors else tiles % multiprocessors
    if rest == 0:
        return 0
    least = 28 if tiles < multiprocessors else 8
    splits = int(min(multiprocessors // rest, steps / least))
    return rest * splits if splits >= 2 else 0


def _check(status: int, what: str) -> None:
    """Raises for a status that is not 0."""
    if status != 0:
        raise Refused(f"{what}: status {status}")


class Library:
    """The installed cuDNN, asked about a GPU."""

    def __init__(self, library: ctypes.CDLL, gpu: dict[str, Any]) -> None:
        self._library = library
        number, pointer, count = ctypes.c_int, ctypes.c_void_p, ctypes.c_int64
        library.cudnnBackendCreateDescriptor.argtypes = [number, ctypes.POINTER(pointer)]
        library.cudnnBackendDestroyDescriptor.argtypes = [pointer]
        library.cudnnBackendFinalize.argtypes = [pointer]
        library.cudnnBackendSetAttribute.argtypes = [pointer, number, number, count, pointer]
        library.cudnnBackendGetAttribute.argtypes = [pointer, number, number, count, ctypes.POINTER(count), pointer]
        library.cudnnGetVersion.restype = ctypes.c_size_t
        self.version = int(library.cudnnGetVersion())
        self._known: dict[Convolution, int | None] = {}
        self._tried: dict[Convolution, int] = {}
        self._compute = gpu.get("deviceVer")
        text = json.dumps(gpu).encode()
        self._gpu = self._make(_PROPERTIES)
        self._set(self._gpu, 2702, _CHAR, len(text), ctypes.create_string_buffer(text, len(text)))
        self._finish(self._gpu)

    def workspace(self, convolution: Convolution) -> int | None:
        """Returns the bytes of the workspace. ``None`` if cuDNN has no engine for the
        convolution."""
        if convolution not in self._known:
            try:
                self._known[convolution] = self._workspace(convolution)
            except Refused:
                self._known[convolution] = None
        return self._known[convolution]

    def trials(self, convolution: Convolution) -> int:
        """Returns the bytes of the workspace in which PyTorch tries all engines for a convolution,
        under ``torch.backends.cudnn.benchmark``: the largest of any."""
        if convolution not in self._tried:
            try:
                sizes = self._workspaces(convolution, (_INSTANT,))
                self._tried[convolution] = max(sizes, default=0)
            except Refused:
                self._tried[convolution] = 0
        return self._tried[convolution]

    def _workspace(self, convolution: Convolution) -> int | None:
        """Asks for the engines in the order in which PyTorch tries them, and returns the workspace
        of the first that PyTorch does not leave out."""
        return next(self._workspaces(convolution, (_INSTANT, _FALLBACK)), None)

    def _workspaces(self, convolution: Convolution, modes: tuple[int, ...]) -> Iterator[int]:
        """Returns the workspaces of all engines that PyTorch does not leave out, in the order in
        which it tries them."""
        made: list[ctypes.c_void_p] = []
        try:
            graph = self._graph(convolution, made)
            for mode in modes:
                for config in self._configs(graph, mode, made):
                    if self._is_left_out(config, convolution, made):
                        continue
                    size = self._bytes(config, made)
                    if size is not None:
                        yield max(0, size + self._segments(config, convolution, made))
        finally:
            for descriptor in reversed(made):
                self._library.cudnnBackendDestroyDescriptor(descriptor)

    def _graph(self, convolution: Convolution, made: list[ctypes.c_void_p]) -> ctypes.c_void_p:
        """Describes a convolution as a graph of one operation."""
        # Products of 16 bits are added up in single precision.
        kind = DOUBLE if convolution.x.kind == DOUBLE else FLOAT
        settings = self._make(_CONVOLUTION, made)
        self._set(settings, 100, _DATA_TYPE, 1, ctypes.c_int(kind))
        self._set(settings, 101, _CONVOLUTION_MODE, 1, ctypes.c_int(1))
        for attribute, values in (
            (102, convolution.dilation),
            (103, convolution.stride),
            (104, convolution.padding),
            (105, convolution.padding),
        ):
            self._integers(settings, attribute, values)
        self._integers(settings, 106, (len(convolution.stride),))
        self._finish(settings)
        alpha, beta, of, *operands = _OPERANDS[convolution.operation]
        operation = self._make(convolution.operation, made)
        scalar = (ctypes.c_double, _DOUBLE) if kind == DOUBLE else (ctypes.c_float, _FLOAT)
        self._set(operation, alpha, scalar[1], 1, scalar[0](1.0))
        self._set(operation, beta, scalar[1], 1, scalar[0](0.0))
        self._set(operation, of, _DESCRIPTOR, 1, settings)
        for attribute, name in zip(operands, "wxy"):
            tensor = self._tensor(getattr(convolution, name), ord(name), made)
            self._set(operation, attribute, _DESCRIPTOR, 1, tensor)
        self._finish(operation)
        graph = self._make(_GRAPH, made)
        self._set(graph, 801, _DESCRIPTOR, 1, operation)
        self._finish(graph)
        return graph

    def _tensor(self, tensor: Tensor, identity: int, made: list[ctypes.c_void_p]) -> ctypes.c_void_p:
        """Describes a tensor."""
        descriptor = self._make(_TENSOR, made)
        self._set(descriptor, 901, _DATA_TYPE, 1, ctypes.c_int(tensor.kind))
        self._integers(descriptor, 902, tensor.sizes)
        self._integers(descriptor, 903, tensor.strides)
        self._integers(descriptor, 906, (identity,))
        self._integers(descriptor, 900, (tensor.alignment,))
        self._finish(descriptor)
        return descriptor

    def _configs(self, graph: ctypes.c_void_p, mode: int, made: list[ctypes.c_void_p]) -> Iterator[ctypes.c_void_p]:
        """Returns the configurations of engines, the best by the heuristics first."""
        heuristics = self._make(_HEURISTICS, made)
        self._set(heuristics, 200, _MODE, 1, ctypes.c_int(mode))
        self._set(heuristics, 201, _DESCRIPTOR, 1, graph)
        self._set(heuristics, 204, _DESCRIPTOR, 1, self._gpu)
        self._finish(heuristics)
        count = ctypes.c_int64(0)
        get = self._library.cudnnBackendGetAttribute
        _check(get(heuristics, 202, _DESCRIPTOR, 0, ctypes.byref(count), None), "the number of engines")
        configs = [self._make(_CONFIG, made) for _ in range(count.value)]
        array = (ctypes.c_void_p * len(configs))(*(config.value for config in configs))
        _check(get(heuristics, 202, _DESCRIPTOR, len(configs), ctypes.byref(count), array), "the engines")
        yield from configs[: count.value]

    def _is_left_out(self, config: ctypes.c_void_p, convolution: Convolution, made: list[ctypes.c_void_p]) -> bool:
        """Returns whether PyTorch leaves an engine out because of what it does to the numbers."""
        engine, count = self._make(_ENGINE, made), ctypes.c_int64(0)
        get = self._library.cudnnBackendGetAttribute
        _check(get(config, 300, _DESCRIPTOR, 1, ctypes.byref(count), ctypes.byref(engine)), "an engine")
        notes = (ctypes.c_int * 32)()
        _check(get(engine, 1303, _NOTE, len(notes), ctypes.byref(count), notes), "an engine's notes")
        of_engine = set(notes[: count.value])
        forbidden = {_DOWN_CONVERT}
        if convolution.deterministic:
            forbidden.add(_NONDETERMINISTIC)
        if convolution.x.kind == FLOAT and not convolution.tf32:
            forbidden.add(_TENSOR_CORE)
        return not of_engine.isdisjoint(forbidden)

    def _bytes(self, config: ctypes.c_void_p, made: list[ctypes.c_void_p]) -> int | None:
        """Returns the workspace of an engine's plan. ``None`` if there is no plan: PyTorch then
        tries the next engine. The workspace in the configuration itself is only a bound."""
        plan = self._make(_PLAN, made)
        self._set(plan, 401, _DESCRIPTOR, 1, config)
        self._set(plan, 407, _DESCRIPTOR, 1, self._gpu)
        if self._library.cudnnBackendFinalize(plan) != 0:
            return None
        size, count = ctypes.c_int64(0), ctypes.c_int64(0)
        get = self._library.cudnnBackendGetAttribute
        _check(get(plan, 402, _INT64, 1, ctypes.byref(count), ctypes.byref(size)), "a workspace")
        return size.value

    def _segments(self, config: ctypes.c_void_p, convolution: Convolution, made: list[ctypes.c_void_p]) -> int:
        """Returns the bytes that an engine needs on a whole GPU beyond those that it names without
        one.

        The engines for Hopper split the sums of the last tiles of an output among the
        multiprocessors that are left over, if they may use a workspace, and keep a tile of
        single precision for each part. Without a GPU cuDNN counts the multiprocessors of one
        cluster of them, 18.
        """
        count, most = ctypes.c_int64(0), 32
        get = self._library.cudnnBackendGetAttribute
        choices = [self._make(_KNOB_CHOICE, made) for _ in range(most)]
        array = (ctypes.c_void_p * most)(*(choice.value for choice in choices))
        if get(config, 302, _DESCRIPTOR, most, ctypes.byref(count), array) != 0:
            return 0
        knobs = {}
        for choice in array[: count.value]:
            kind, value, one = ctypes.c_int(0), ctypes.c_int64(0), ctypes.c_int64(0)
            _check(get(choice, 600, _KNOB, 1, ctypes.byref(one), ctypes.byref(kind)), "a knob")
            _check(get(choice, 601, _INT64, 1, ctypes.byref(one), ctypes.byref(value)), "a knob's value")
            knobs[kind.value] = value.value
        tile = _TILES.get(knobs.get(_TILE_SIZE, -1))
        across, down = knobs.get(_CLUSTER_ROWS, 0), knobs.get(_CLUSTER_COLUMNS, 0)
        whole = _MULTIPROCESSORS.get(across * down)
        is_simple = convolution.x.sizes[1] == convolution.w.sizes[1]
        if knobs.get(_WORKSPACE) != 0 or tile is None or whole is None or self._compute != 900 or not is_simple:
            return 0
        tiles, depth = _tiles(convolution, tile, (across, down))
        steps = depth / (32 << knobs.get(_TILE_DEPTH, 0))
        alone = 18 // (across * down) * across * down
        return (_parts(tiles, steps, whole) - _parts(tiles, steps, alone)) * 4 * tile[0] * tile[1]

    def _make(self, kind: int, made: list[ctypes.c_void_p] | None = None) -> ctypes.c_void_p:
        """Makes a descriptor, which the caller destroys if it is not added to ``made``."""
        descriptor = ctypes.c_void_p()
        _check(self._library.cudnnBackendCreateDescriptor(kind, ctypes.byref(descriptor)), "a descriptor")
        if made is not None:
            made.append(descriptor)
        return descriptor

    def _set(self, descriptor: ctypes.c_void_p, attribute: int, kind: int, count: int, value: Any) -> None:
        """Sets an attribute."""
        status = self._library.cudnnBackendSetAttribute(descriptor, attribute, kind, count, ctypes.byref(value))
        _check(status, f"attribute {attribute}")

    def _integers(self, descriptor: ctypes.c_void_p, attribute: int, values: tuple[int, ...]) -> None:
        """Sets an attribute to some integers."""
        self._set(descriptor, attribute, _INT64, len(values), (ctypes.c_int64 * len(values))(*values))

    def _finish(self, descriptor: ctypes.c_void_p) -> None:
        """Completes a descriptor."""
        _check(self._library.cudnnBackendFinalize(descriptor), "a descriptor")


def named(version: int) -> str:
    """Returns a version as people write it."""
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


@functools.cache
def installed(gpu: str = json.dumps(H100)) -> Library | None:
    """Returns the installed cuDNN, asked about a GPU that JSON describes. ``None`` if there is none
    of version 9.8 or later, or it does not know the GPU."""
    for path in ["libcudnn.so.9", *_wheel()]:
        try:
            library = Library(ctypes.CDLL(path), json.loads(gpu))
        except (OSError, AttributeError, Refused):
            continue
        return library if library.version >= LEAST_VERSION else None
    return None


def _wheel() -> list[str]:
    """Returns the library of the package `nvidia-cudnn-cu13` or `nvidia-cudnn-cu12`."""
    try:
        package = importlib.util.find_spec("nvidia.cudnn")
    except ModuleNotFoundError:
        return []
    folders = package.submodule_search_locations if package else None
    files = (Path(folder) / "lib" / "libcudnn.so.9" for folder in folders or [])
    return [str(file) for file in files if file.is_file()]
