"""``cachalot_gpu.tensorrt_llm``: the functions of TensorRT-LLM that it replaces, and what their calls ask of the library."""

from __future__ import annotations

import contextlib
import enum
import importlib
import inspect
import sys
import types
import unittest
from typing import Any
from unittest import mock

import torch  # the stand-in

import cachalot_gpu
import cachalot_gpu.tensorrt_llm
import parking

NOTHING = inspect.Parameter.empty
INTERFACE: dict[str, list[tuple[str, Any, Any]]] = {
    # TensorRT-LLM, September 2026, tensorrt_llm/_torch/virtual_memory.py: the parameters with kind and default. A mode
    # that is not given is `NONE` there, which `None` means here.
    "scope": [("tag", "name", NOTHING), ("mode", "name", None)],
    "maybe_scope": [("enable", "name", NOTHING), ("tag", "name", NOTHING), ("mode", "name", None)],
    "preserve_contents": [],
    "release_with_tag": [("tags", "all", NOTHING)],
    "materialize_with_tag": [("tags", "all", NOTHING)],
}
KINDS = {inspect.Parameter.POSITIONAL_OR_KEYWORD: "name", inspect.Parameter.VAR_POSITIONAL: "all"}


class RestoreMode(enum.Enum):
    """TensorRT-LLM's modes."""

    NONE = 0
    CPU = 1
    PINNED = 2
    MEMSET = 3


class MemoryType(str, enum.Enum):
    """Some of TensorRT-LLM's tags, which are texts."""

    __str__ = str.__str__

    MODEL = "model"
    KV_CACHE = "kv_cache"


class Manager:
    """TensorRT-LLM's manager of what its own library allocates: pieces by tag, and the stack of scopes."""

    def __init__(self) -> None:
        self.stack: list[tuple[str, RestoreMode, int]] = []
        self.pieces: list[tuple[str, bool]] = []
        """The tag of every piece, and whether it is there."""

    def push(self, tag: str, mode: RestoreMode, stream: int) -> None:
        self.stack.append((tag, mode, stream))

    def allocate(self) -> None:
        """Makes a piece in the scope of this moment."""
        self.pieces.append((self.stack[-1][0], True))

    def _change(self, tag: str, present: bool) -> int:
        changed = self.pieces.count((tag, not present))
        self.pieces = [(name, present if name == tag else now) for name, now in self.pieces]
        return changed

    def release_with_tag(self, tag: str) -> int:
        return self._change(tag, present=False)

    def materialize_with_tag(self, tag: str) -> int:
        return self._change(tag, present=True)


def modules(manager: Manager) -> dict[str, types.ModuleType]:
    """The modules of a TensorRT-LLM: the one with the functions, and one that has imported some of them."""
    names = ("tensorrt_llm", "tensorrt_llm._torch", "tensorrt_llm._torch.virtual_memory", "tensorrt_llm.worker")
    found = {name: types.ModuleType(name) for name in names}
    for package in names[:2]:
        found[package].__path__ = []

    def unused(*arguments: Any, **named: Any) -> None:
        raise AssertionError("cachalot's function is called in its place")

    own = {name: types.FunctionType(unused.__code__, {}, name) for name in INTERFACE}
    vars(found["tensorrt_llm._torch.virtual_memory"]).update(
        own,
        RestoreMode=RestoreMode,
        push_virtual_memory_allocator=manager.push,
        pop_virtual_memory_allocator=manager.stack.pop,
        get_virtual_memory_manager=lambda: manager,
    )
    worker = vars(found["tensorrt_llm.worker"])
    worker.update(virtual_memory_scope=own["scope"], release_with_tag=own["release_with_tag"], other=unused)
    return found


class TensorRtLlm(unittest.TestCase):
    """A TensorRT-LLM with the functions."""

    def setUp(self) -> None:
        self.library = parking.install()
        torch.cuda.current_stream = lambda: types.SimpleNamespace(cuda_stream=7)  # type: ignore[attr-defined]
        self.manager = Manager()
        patch = mock.patch.dict(sys.modules, modules(self.manager))
        patch.start()
        self.addCleanup(patch.stop)
        self.own = importlib.reload(cachalot_gpu.tensorrt_llm)
        self.own._originals.clear()
        self.own._parts.clear()
        self.own.register()
        self.theirs: Any = sys.modules["tensorrt_llm._torch.virtual_memory"]

    def request(self) -> str | None:
        """The tag of a request at this moment."""
        tag = parking.request(self.library)
        return tag and tag.removeprefix("tensorrt_llm: ")

    def modes(self) -> dict[str, int]:
        """The modes of the parked tags."""
        return {name.removeprefix("tensorrt_llm: "): mode for name, mode in self.library.modes().items()}

    def fill(self, tag: str, *modes: RestoreMode) -> None:
        """Makes a request under a tag with each mode."""
        for mode in modes:
            with self.theirs.scope(tag, mode):
                self.assertEqual(self.request(), f"{tag} ({mode.name})")

    def test_the_functions_have_the_published_interface(self) -> None:
        for name, wanted in INTERFACE.items():
            parameters = inspect.signature(getattr(self.own, name)).parameters.values()
            self.assertEqual([(each.name, KINDS[each.kind], each.default) for each in parameters], wanted, name)
        self.assertEqual(set(self.own.__all__), INTERFACE.keys() | {"Scope", "register"})

    def test_register_replaces_what_was_imported(self) -> None:
        worker: Any = sys.modules["tensorrt_llm.worker"]
        for name in INTERFACE:
            self.assertIs(getattr(self.theirs, name), getattr(self.own, name))
        self.assertIs(worker.virtual_memory_scope, self.own.scope)
        self.assertIs(worker.release_with_tag, self.own.release_with_tag)
        self.assertRaises(AssertionError, worker.other)
        self.assertIs(self.theirs.RestoreMode, RestoreMode)
        # A module that took the original from elsewhere is reached by a second call.
        worker.release_with_tag = self.own._originals["release_with_tag"]
        self.own.register()
        self.assertIs(worker.release_with_tag, self.own.release_with_tag)

    def test_an_older_module_has_fewer_functions(self) -> None:
        del self.theirs.preserve_contents
        self.own._originals.clear()
        self.own.register()
        self.assertFalse(hasattr(self.theirs, "preserve_contents"))

    def test_register_enables_with_the_settings(self) -> None:
        calls: list[str | None] = []
        with mock.patch.multiple(self.own._own, enabled=lambda: False, enable=calls.append):
            self.own.register("policy:stitched")
        self.assertEqual(calls, ["policy:stitched"])

    def test_without_tensorrt_llm_there_is_an_import_error(self) -> None:
        with mock.patch.dict(sys.modules, {"tensorrt_llm._torch.virtual_memory": None}), self.assertRaises(ImportError):
            self.own.register()

    def test_scopes_lead_requests_of_both_libraries(self) -> None:
        with self.theirs.scope("model", mode=RestoreMode.CPU) as outer:
            self.assertEqual((outer.tag, outer.mode), ("model", RestoreMode.CPU))
            self.assertEqual(self.manager.stack, [("model", RestoreMode.CPU, 7)])
            with self.theirs.scope(MemoryType.KV_CACHE):
                self.assertEqual(self.request(), "kv_cache (NONE)")
                self.assertEqual(self.manager.stack[-1], ("kv_cache", RestoreMode.NONE, 7))
            self.assertEqual(self.request(), "model (CPU)")
        self.assertEqual((self.request(), self.manager.stack), (None, []))

    def test_maybe_scope(self) -> None:
        with self.theirs.maybe_scope(True, "model", RestoreMode.PINNED) as here:
            self.assertEqual((self.request(), here.tag), ("model (PINNED)", "model"))
        with self.theirs.maybe_scope(False, "model") as here:
            self.assertEqual((self.request(), here, self.manager.stack), (None, None, []))

    def test_contents_are_preserved_inside_scopes_that_lose_them(self) -> None:
        for mode, inside in ((None, "CPU"), (RestoreMode.MEMSET, "CPU"), (RestoreMode.PINNED, "PINNED")):
            with self.theirs.scope("drafter", mode):
                with self.theirs.preserve_contents():
                    self.assertEqual(self.request(), f"drafter ({inside})")
                outside = "NONE" if mode is None else mode.name
                self.assertEqual(self.request(), f"drafter ({outside})")
        with self.theirs.preserve_contents():
            self.assertIsNone(self.request())

    def test_a_failure_in_a_scope_ends_it(self) -> None:
        with contextlib.suppress(MemoryError), self.theirs.scope("model"):
            raise MemoryError
        with self.theirs.preserve_contents():
            self.assertEqual((self.request(), self.manager.stack), (None, []))

    def test_release_and_materialize(self) -> None:
        keep, drop, zero = parking.KEEP, parking.DROP, parking.ZERO
        self.fill("model", RestoreMode.PINNED, RestoreMode.NONE)
        self.fill("kv_cache", RestoreMode.MEMSET)
        with self.theirs.scope("kv_cache"):
            self.manager.allocate()
            self.manager.allocate()
        # Two pieces of PyTorch's and two of the other library: the scope of these made one more of PyTorch's.
        self.assertEqual(self.theirs.release_with_tag(MemoryType.KV_CACHE), 4)
        self.assertEqual(self.modes(), {"kv_cache (MEMSET)": zero, "kv_cache (NONE)": drop})
        self.assertEqual(self.manager.pieces, [("kv_cache", False)] * 2)
        self.assertEqual(self.theirs.release_with_tag("model", "kv_cache", "nowhere"), 2)
        self.assertEqual((self.modes()["model (PINNED)"], self.modes()["model (NONE)"]), (keep, drop))
        self.assertEqual(self.theirs.materialize_with_tag("model"), 2)
        self.assertEqual(self.theirs.materialize_with_tag("model", "kv_cache"), 4)
        self.assertEqual((self.modes(), self.theirs.release_with_tag()), ({}, 0))
        self.assertEqual(self.manager.pieces, [("kv_cache", True)] * 2)

    def test_a_release_that_fails_leaves_all_awake(self) -> None:
        self.fill("model", RestoreMode.CPU, RestoreMode.NONE)
        number = parking._tags._numbers["tensorrt_llm: model (NONE)"]
        self.library.failures["park", number] = cachalot_gpu.CachalotError("not now", 184)
        with self.theirs.scope("model"):
            self.manager.allocate()
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "not now"):
            self.theirs.release_with_tag("model")
        self.assertEqual((self.modes(), self.manager.pieces), ({}, [("model", True)]))

    def test_a_wake_without_memory_can_be_repeated(self) -> None:
        self.fill("model", RestoreMode.CPU)
        self.theirs.release_with_tag("model")
        number = parking._tags._numbers["tensorrt_llm: model (CPU)"]
        self.library.failures["wake_start", number] = cachalot_gpu.OutOfMemoryError("out of memory", 210)
        with self.assertRaises(cachalot_gpu.OutOfMemoryError):
            self.theirs.materialize_with_tag("model")
        self.assertEqual(self.modes(), {"model (CPU)": parking.KEEP})
        self.library.failures.clear()
        self.assertEqual((self.theirs.materialize_with_tag("model"), self.modes()), (1, {}))


if __name__ == "__main__":
    unittest.main(verbosity=2)
