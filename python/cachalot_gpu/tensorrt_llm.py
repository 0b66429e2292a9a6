"""TensorRT-LLM's release and resume by tag, over cachalot's parking.

    cachalot_gpu.tensorrt_llm.register("policy:stitched")

before the first use of CUDA, in every process of TensorRT-LLM that holds memory of a GPU. Then what
PyTorch allocates for a model, its caches and graphs is in tagged pools of cachalot, and
``release()`` and ``resume()`` of an ``LLM`` park and wake them. Memory that TensorRT-LLM's own
library allocates in a scope stays with its manager, and goes and comes with the same calls.

The functions are those of ``tensorrt_llm._torch.virtual_memory`` in September 2026. TensorRT-LLM's
restore modes say what becomes of the contents: ``CPU`` and ``PINNED`` keep them in pinned memory,
``MEMSET`` wakes with zeroes, and ``NONE`` loses them.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from . import torch as _own
from .torch import _switch, _tags, _together

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Scope",
    "materialize_with_tag",
    "maybe_scope",
    "preserve_contents",
    "register",
    "release_with_tag",
    "scope",
]

_REPLACED = ("scope", "maybe_scope", "preserve_contents", "release_with_tag", "materialize_with_tag")
"""The functions of TensorRT-LLM's module that have a counterpart of the same name here."""

_KEEPING = ("CPU", "PINNED")
"""The restore modes that keep contents."""


class Scope(NamedTuple):
    """A scope that a thread is in. TensorRT-LLM's counterpart keeps the memory alive; here the tag
    does."""

    tag: str
    mode: Any


_lock = threading.RLock()
_parts: dict[str, list[_together.Part]] = {}
"""The memory of every tag, in the order of its first use, in which it wakes."""
_within = threading.local()
"""The scopes of each thread, the inner one last."""
_originals: dict[str, Any] = {}
"""TensorRT-LLM's functions for the memory of its own library; none before :func:`register`."""


def _part(tag: str, mode: Any) -> _together.Part:
    """Returns the memory of a tag with one restore mode on the current device, whose pool is made
    at the first call."""
    device, name = torch.cuda.current_device(), mode.name
    part = _together.Part(f"tensorrt_llm: {tag!s} ({name})", name in _KEEPING, device, name == "MEMSET")
    with _lock:
        part.tag.pool()
        parts = _parts.setdefault(str(tag), [])
        if part not in parts:
            parts.append(part)
    return part


@contextlib.contextmanager
def scope(tag: str, mode: Any = None) -> Iterator[Scope]:
    """Puts what this thread allocates on the current device under a tag. In nested scopes, the
    inner one counts.

    Args:
        tag: the name for :func:`release_with_tag` and :func:`materialize_with_tag`.
        mode: one of TensorRT-LLM's restore modes; ``None`` is its ``NONE``. A tag may have memory
            of several modes.
    """
    mode = _originals["RestoreMode"].NONE if mode is None else mode
    here = Scope(tag, mode)
    scopes = _within.__dict__.setdefault("scopes", [])
    with contextlib.ExitStack() as ends:
        ends.enter_context(_part(tag, mode).tag)
        # TensorRT-LLM's own library allocates beside PyTorch, and asks its own stack of scopes.
        _originals["push_virtual_memory_allocator"](tag, mode, torch.cuda.current_stream().cuda_stream)
        ends.callback(_originals["pop_virtual_memory_allocator"])
        scopes.append(here)
        ends.callback(scopes.pop)
        yield here


@contextlib.contextmanager
def maybe_scope(enable: bool, tag: str, mode: Any = None) -> Iterator[Scope | None]:
    """Does as :func:`scope` if ``enable`` is set, and otherwise nothing."""
    if not enable:
        yield None
        return
    with scope(tag, mode) as here:
        yield here


@contextlib.contextmanager
def preserve_contents() -> Iterator[None]:
    """Keeps the contents of what is allocated inside, in a scope that would lose them. The tag
    stays. Outside of all scopes this does nothing."""
    scopes = getattr(_within, "scopes", [])
    if not scopes or scopes[-1].mode.name in _KEEPING:
        yield
        return
    with scope(scopes[-1].tag, _originals["RestoreMode"].CPU):
        yield


def _known(tags: tuple[str, ...]) -> list[_together.Part]:
    """Returns the memory of some tags. A tag without memory has none."""
    return [part for tag in dict.fromkeys(map(str, tags)) for part in _parts.get(tag, [])]


def release_with_tag(*tags: str) -> int:
    """Parks the tags, and returns how many pieces of memory that was: of PyTorch's, a piece is what
    a tag has with one restore mode on a device. What is parked stays as it is.

    Raises:
        CachalotError: the host does not have the memory for the contents, or a graph is being
            captured. All that was awake is awake.
    """
    with _lock:
        awake = [part for part in _known(tags) if part.is_awake()]
        _together.park(awake)
    manager = _originals["get_virtual_memory_manager"]()
    return len(awake) + sum(manager.release_with_tag(tag) for tag in tags)


def materialize_with_tag(*tags: str) -> int:
    """Wakes the tags, and returns how many pieces of memory that was. What is awake stays as it is.

    Raises:
        OutOfMemoryError: the GPU does not have the memory. What had no room stays parked, with its
            contents.
    """
    with _lock:
        parked = [part for part in _known(tags) if not part.is_awake()]
        _together.wake(parked)
    manager = _originals["get_virtual_memory_manager"]()
    return len(parked) + sum(manager.materialize_with_tag(tag) for tag in tags)


def register(config: str | None = None) -> None:
    """Enables cachalot in this process, and puts the functions of this module in the place of
    TensorRT-LLM's, wherever its modules have imported them. A second call reaches the modules that
    were imported since. With ``CACHALOT_DISABLE``, TensorRT-LLM keeps its own.

    Raises:
        CachalotError: cachalot cannot be PyTorch's whole allocator here.
        ImportError: there is no TensorRT-LLM with these functions.
    """
    if _switch.leave_out_if_disabled():
        return
    if not _own.enabled():
        _own.enable(config)
    _tags.require()
    theirs: Any = importlib.import_module("tensorrt_llm._torch.virtual_memory")
    if not _originals:
        _originals.update(vars(theirs))
    ours = {id(_originals[name]): globals()[name] for name in _REPLACED if name in _originals}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "tensorrt_llm":
            for key, value in list(vars(module).items()):
                # By identity: a module may have imported a function under another name.
                if id(value) in ours:
                    setattr(module, key, ours[id(value)])
