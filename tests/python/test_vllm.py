"""``cachalot_gpu.vllm``: the interface that vLLM publishes, and what its calls ask of the library."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import threading
import time
import types
import unittest
from typing import Any, Callable
from unittest import mock

import cachalot_gpu
import cachalot_gpu.vllm
import parking

NOTHING = inspect.Parameter.empty
BACKEND = {
    # vLLM 0.33, vllm/device_allocator/sleep_mode_backend.py, which came with 0.25.
    "suspend": [("level", 1)],
    "resume": [("tags", None)],
    "state": [],
    "discard": [("tags", NOTHING)],
}
FLAGS = {
    # The class methods, and what cachalot answers.
    "is_supported": True,
    "preserves_communicators": True,
    "preserves_compiled_artifacts": True,
    "preserves_graphs_with_communicators": False,
    "supports_durable_storage": False,
}
ALLOCATOR = {
    # vLLM 0.33, vllm/device_allocator/cumem.py. Version 0.11 has all but the last four.
    "get_instance": [],
    "use_memory_pool": [("tag", None)],
    "sleep": [("offload_tags", None)],
    "wake_up": [("tags", None)],
    "get_current_usage": [],
    "discard": [("tags", NOTHING)],
    "cudagraph_pool": [],
    "release_pools": [],
    "close": [],
}
ATTRIBUTES = {"instance": None, "default_tag": "default"}


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """The parameters of a bound method, with their defaults."""
    return [(parameter.name, parameter.default) for parameter in inspect.signature(function).parameters.values()]


class Base:
    """vLLM's base of backends, with the names of the table."""

    def __init__(self) -> None:
        self._state = "RUNNING"


class Factory:
    """vLLM's registry: a name, a module and a class of it, which is imported when it is asked for."""

    backends: dict[str, tuple[str, str]]

    @classmethod
    def register_backend(cls, name: str, module_path: str, class_name: str) -> None:
        if name in cls.backends:
            raise ValueError("already registered")
        cls.backends[name] = (module_path, class_name)

    @classmethod
    def create_backend(cls, name: str) -> Any:
        module, class_name = cls.backends[name]
        backend = getattr(importlib.import_module(module), class_name)
        assert backend.is_supported()
        return backend()


def modules(registry: bool) -> dict[str, types.ModuleType]:
    """The modules of a vLLM with or without the registry."""
    Factory.backends = {"cumem": ("nowhere", "CuMemBackend")}
    theirs = type("CuMemAllocator", (), {"get_instance": staticmethod(lambda: "theirs")})
    found = {name: types.ModuleType(name) for name in ("vllm", "vllm.device_allocator")}
    found["vllm.device_allocator.cumem"] = cumem = types.ModuleType("vllm.device_allocator.cumem")
    cumem.CuMemAllocator = theirs  # type: ignore[attr-defined]
    name = "vllm.device_allocator.sleep_mode_backend"
    found[name] = types.ModuleType(name)
    if registry:
        vars(found[name]).update(SleepModeBackend=Base, SleepModeBackendFactory=Factory)
    else:
        found[name] = None  # type: ignore[assignment]
    for package in ("vllm", "vllm.device_allocator"):
        found[package].__path__ = []
    return found


class Vllm(unittest.TestCase):
    """A vLLM with the registry."""

    registry = True

    def setUp(self) -> None:
        self.library = parking.install()
        patch = mock.patch.dict(sys.modules, modules(self.registry))
        patch.start()
        self.addCleanup(patch.stop)
        self.own = importlib.reload(cachalot_gpu.vllm)
        self.allocator = self.own.CuMemAllocator.get_instance()

    def request(self) -> str | None:
        """The tag of a request at this moment."""
        return parking.request(self.library)

    def fill(self, *tags: str) -> None:
        """Makes a request under each tag."""
        for tag in tags:
            with self.allocator.use_memory_pool(tag):
                self.assertEqual(self.request(), f"vllm: {tag}")

    def modes(self) -> dict[str, int]:
        """The modes of the parked tags."""
        return {name.removeprefix("vllm: "): mode for name, mode in self.library.modes().items()}

    def test_the_backend_has_the_published_interface(self) -> None:
        backend = self.own.CachalotBackend()
        self.assertEqual(isinstance(backend, Base), self.registry)
        for method, wanted in BACKEND.items():
            self.assertEqual(parameters(getattr(backend, method)), wanted, method)
        for flag, wanted in FLAGS.items():
            self.assertIs(getattr(self.own.CachalotBackend, flag)(), wanted, flag)
        public = {name for name in vars(self.own.CachalotBackend) if not name.startswith("_")}
        self.assertEqual(public, BACKEND.keys() | FLAGS.keys())
        with mock.patch.object(self.own._whole, "in_place", lambda: False):
            self.assertIs(self.own.CachalotBackend.is_supported(), False)

    def test_the_allocator_has_the_published_interface(self) -> None:
        for method, wanted in ALLOCATOR.items():
            self.assertEqual(parameters(getattr(self.allocator, method)), wanted, method)
        public = {name for name in vars(self.own.CuMemAllocator) if not name.startswith("_")}
        self.assertEqual(public, ALLOCATOR.keys() | ATTRIBUTES.keys())
        self.assertEqual(self.own.CuMemAllocator.default_tag, ATTRIBUTES["default_tag"])
        self.assertIs(self.own.CuMemAllocator.get_instance(), self.allocator)
        self.assertIs(self.own.CuMemAllocator.instance, self.allocator)

    def test_register(self) -> None:
        for _ in range(2):
            self.own.register()
        theirs = sys.modules["vllm.device_allocator.cumem"].CuMemAllocator
        self.assertIs(theirs.get_instance(), self.allocator)
        self.assertEqual("cachalot" in Factory.backends, self.registry)
        if self.registry:
            backend = Factory.create_backend("cachalot")
            self.assertIsInstance(backend, Base)
            self.assertEqual(backend.state(), "RUNNING")

    def test_register_enables_with_the_settings(self) -> None:
        calls: list[str | None] = []
        own = mock.patch.multiple(self.own._own, enabled=lambda: False, enable=calls.append)
        with own:
            self.own.register("policy:stitched")
            self.own.plugin()
            with mock.patch.dict(os.environ, CACHALOT_VLLM="policy:caching"):
                self.own.plugin()
        self.assertEqual(calls, ["policy:stitched", "policy:caching"])

    def test_register_without_the_whole_allocator(self) -> None:
        with (
            mock.patch.multiple(self.own._own, enabled=lambda: True),
            mock.patch.object(self.own._whole, "in_place", lambda: False),
            self.assertRaisesRegex(cachalot_gpu.CachalotError, "2.6 to 2.15"),
        ):
            self.own.register()
        self.assertEqual(sys.modules["vllm.device_allocator.cumem"].CuMemAllocator.get_instance(), "theirs")

    def test_pools(self) -> None:
        with self.allocator.use_memory_pool():
            self.assertEqual(self.request(), "vllm: default")
            with self.allocator.use_memory_pool("weights"):
                self.assertEqual(self.request(), "vllm: weights")
            self.assertEqual(self.request(), "vllm: default")
        self.assertIsNone(self.request())
        self.assertEqual(self.allocator.get_current_usage(), 3 * parking.MIB)
        self.allocator.sleep()
        self.assertEqual(self.allocator.get_current_usage(), 3 * parking.MIB)
        with self.allocator.cudagraph_pool() as pool:
            self.assertEqual(self.library.tag_of(pool), "vllm: cudagraph")

    def test_sleep_of_the_allocator(self) -> None:
        self.assertEqual(self.allocator.get_current_usage(), 0)
        self.fill("default", "weights", "kv_cache")
        keep, drop = parking.KEEP, parking.DROP
        for tags, modes in (
            (None, {"default": keep, "weights": drop, "kv_cache": drop}),
            ("weights", {"default": drop, "weights": keep, "kv_cache": drop}),
            (("weights", "default"), {"default": keep, "weights": keep, "kv_cache": drop}),
            ((), {"default": drop, "weights": drop, "kv_cache": drop}),
        ):
            self.allocator.sleep(tags)
            self.assertEqual(self.modes(), modes)
            # What sleeps keeps the mode that it has.
            self.allocator.sleep("kv_cache")
            self.assertEqual(self.modes(), modes)
            self.assertIn(("empty_cache",), self.library.calls)
            self.allocator.wake_up()
            self.assertEqual(self.modes(), {})

    def test_threads_make_one_allocator(self) -> None:
        made = []

        class Slow(self.own.CuMemAllocator):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                made.append(self)
                time.sleep(0.05)
                super().__init__()

        self.own.CuMemAllocator.instance = None
        with mock.patch.object(self.own, "CuMemAllocator", Slow):
            get = self.allocator.get_instance
            threads = [threading.Thread(target=get) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(len(made), 1)

    def test_a_tag_outlives_a_failure_under_it(self) -> None:
        self.fill("weights")
        with (
            mock.patch.object(self.own._own.Tag, "pool", side_effect=MemoryError),
            self.assertRaises(MemoryError),
            self.allocator.use_memory_pool("weights"),
        ):
            pass
        self.allocator.sleep("weights")
        self.assertEqual(self.modes(), {"weights": parking.KEEP})
        self.allocator.wake_up("weights")
        self.assertEqual(self.modes(), {})

    def test_wake_up_of_some_tags(self) -> None:
        self.fill("weights", "kv_cache", "runtime")
        self.allocator.sleep("weights")
        self.allocator.wake_up(["weights"])
        # Only weights and the cache can stay behind.
        self.assertEqual(self.modes(), {"kv_cache": parking.DROP})
        self.allocator.wake_up(["kv_cache"])
        self.assertEqual(self.modes(), {})

    def test_tags_wake_in_the_order_of_their_first_use(self) -> None:
        self.fill("weights", "kv_cache")
        self.allocator.sleep()
        self.allocator.wake_up()
        started = [call[2] for call in self.library.calls if call[0] == "wake_start"]
        self.assertEqual(started, sorted(started))

    def test_discard(self) -> None:
        self.fill("weights", "kv_cache")
        self.allocator.discard("kv_cache")
        self.allocator.discard(("kv_cache", "nowhere"))
        self.assertEqual(self.modes(), {"kv_cache": parking.DROP})

    def test_a_sleep_that_fails(self) -> None:
        self.fill("weights", "kv_cache")
        number = parking._tags._numbers["vllm: kv_cache"]
        self.library.failures["park", number] = cachalot_gpu.CachalotError("not now", 184)
        backend = self.own.CachalotBackend()
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "not now"):
            backend.suspend()
        self.assertEqual((self.modes(), backend.state()), ({}, "RUNNING"))

    def test_levels_and_states(self) -> None:
        self.fill("weights", "kv_cache", "runtime", "cudagraph")
        backend = self.own.CachalotBackend()
        keep, drop = parking.KEEP, parking.DROP
        for level, of_weights in ((1, keep), (2, drop)):
            backend.suspend(level)
            wanted = {"weights": of_weights, "kv_cache": drop, "runtime": keep, "cudagraph": keep}
            self.assertEqual((self.modes(), backend.state()), (wanted, "SUSPENDED"))
            backend.resume(["weights"])
            self.assertEqual((self.modes(), backend.state()), ({"kv_cache": drop}, "RUNNING"))
            backend.resume(["kv_cache"])
            self.assertEqual(self.modes(), {})
        backend.discard(("kv_cache",))
        self.assertEqual((self.modes(), backend.state()), ({"kv_cache": drop}, "SUSPENDED"))
        with self.assertRaisesRegex(ValueError, "level 1 or 2"):
            backend.suspend(3)

    def test_a_resume_without_memory(self) -> None:
        self.fill("weights", "kv_cache")
        backend = self.own.CachalotBackend()
        backend.suspend()
        number = parking._tags._numbers["vllm: kv_cache"]
        self.library.failures["wake_start", number] = cachalot_gpu.OutOfMemoryError("out of memory", 210)
        with self.assertRaises(cachalot_gpu.OutOfMemoryError):
            backend.resume()
        self.assertEqual((self.modes(), backend.state()), ({"kv_cache": parking.DROP}, "SUSPENDED"))
        self.library.failures.clear()
        backend.resume()
        self.assertEqual((self.modes(), backend.state()), ({}, "RUNNING"))


class WithoutRegistry(Vllm):
    """A vLLM before the registry, whose workers call the allocator."""

    registry = False


class WithoutVllm(unittest.TestCase):
    """No vLLM at all."""

    def test_register(self) -> None:
        parking.install()
        with mock.patch.dict(sys.modules, {"vllm": None}), self.assertRaises(ImportError):
            importlib.reload(cachalot_gpu.vllm).register()


if __name__ == "__main__":
    unittest.main(verbosity=2)
