"""``cachalot_gpu.memory_saver``: the published interface, and what its calls ask of the library."""

from __future__ import annotations

import inspect
import os
import threading
import types
import unittest
from unittest import mock

import torch  # the stand-in

import cachalot_gpu
import parking
from cachalot_gpu import memory_saver

NOTHING = inspect.Parameter.empty
INTERFACE = {
    # torch_memory_saver 0.0.10: the method's name, and its parameters with their defaults.
    "region": [
        ("tag", "default"),
        ("enable_cpu_backup", False),
        ("enable_disk_backup", False),
        ("cpu_backup_backend", None),
    ],
    "cuda_graph": [
        ("cuda_graph", NOTHING),
        ("pool", None),
        ("stream", None),
        ("capture_error_mode", "global"),
        ("tag", "default"),
        ("enable_cpu_backup", False),
        ("cpu_backup_backend", None),
    ],
    "disable": [],
    "pause": [("tag", None)],
    "resume": [("tag", None)],
    "get_cpu_backup": [("x", NOTHING), ("zero_copy", False)],
    "set_disk_backup_dir": [("path", NOTHING)],
}
PROPERTIES = {"enabled": False, "hook_mode": True, "memory_margin_bytes": True, "retain_cpu_backup": True}
"""The published properties, and whether they can be set."""
MODULE = {"torch_memory_saver", "TorchMemorySaver", "configure_subprocess"}


def name(tag: str, kept: bool) -> str:
    """The tag of the library."""
    return f"memory_saver: {tag} ({'kept' if kept else 'dropped'})"


class Interface(unittest.TestCase):
    """The table above, and nothing else that is public."""

    def test_methods(self) -> None:
        for method, wanted in INTERFACE.items():
            signature = inspect.signature(getattr(memory_saver.torch_memory_saver, method))
            found = [(parameter.name, parameter.default) for parameter in signature.parameters.values()]
            self.assertEqual(found, wanted, method)
            kinds = {parameter.kind for parameter in signature.parameters.values()}
            self.assertLessEqual(kinds, {inspect.Parameter.POSITIONAL_OR_KEYWORD}, method)

    def test_properties(self) -> None:
        for published, can_be_set in PROPERTIES.items():
            found = inspect.getattr_static(memory_saver.TorchMemorySaver, published)
            self.assertIsInstance(found, property)
            self.assertEqual(found.fset is not None, can_be_set, published)

    def test_nothing_else(self) -> None:
        public = {member for member in dir(memory_saver.TorchMemorySaver) if not member.startswith("_")}
        self.assertEqual(public, INTERFACE.keys() | PROPERTIES.keys())
        self.assertEqual(set(memory_saver.__all__), MODULE)
        self.assertIsInstance(memory_saver.torch_memory_saver, memory_saver.TorchMemorySaver)
        self.assertFalse(inspect.signature(memory_saver.TorchMemorySaver).parameters)


class Saver(unittest.TestCase):
    """A saver of its own for every test, over a library in name only."""

    def setUp(self) -> None:
        self.library = parking.install()
        self.saver = memory_saver.TorchMemorySaver()

    def request(self) -> str | None:
        """The tag of a request at this moment."""
        return parking.request(self.library)

    def parks(self) -> list[tuple[str, int]]:
        """The tags that were parked so far, with their modes."""
        names = {number: tag for tag, number in parking._tags._numbers.items()}
        return [(names[call[2]], call[3]) for call in self.library.calls if call[0] == "park"]

    def test_a_region(self) -> None:
        self.assertIsNone(self.request())
        with self.saver.region():
            self.assertEqual(self.request(), name("default", False))
        with self.saver.region("weights", enable_cpu_backup=True):
            self.assertEqual(self.request(), name("weights", True))
        self.assertIsNone(self.request())
        self.saver.pause()
        self.assertEqual(
            self.library.modes(), {name("weights", True): parking.KEEP, name("default", False): parking.DROP}
        )
        self.saver.resume()
        self.assertEqual(self.library.modes(), {})

    def test_one_tag_of_both_kinds(self) -> None:
        for kept in (True, False, True):
            with self.saver.region("a", enable_cpu_backup=kept):
                self.assertEqual(self.request(), name("a", kept))
        with self.saver.region("b"):
            self.request()
        self.assertEqual(len(parking.State.pools), 3)
        self.saver.pause("a")
        self.assertEqual(self.parks(), [(name("a", True), parking.KEEP), (name("a", False), parking.DROP)])
        self.saver.resume("a")
        self.assertEqual(self.library.modes(), {})

    def test_nested_regions(self) -> None:
        with self.saver.region("outer", enable_cpu_backup=True):
            with self.saver.region("inner"):
                self.assertEqual(self.request(), name("inner", False))
                with self.saver.region("outer", enable_cpu_backup=True):
                    self.assertEqual(self.request(), name("outer", True))
                self.assertEqual(self.request(), name("inner", False))
            with self.saver.region("outer", enable_cpu_backup=True):
                self.assertEqual(self.request(), name("outer", True))
            self.assertEqual(self.request(), name("outer", True))
        self.assertIsNone(self.request())

    def test_a_region_that_fails(self) -> None:
        with self.assertRaises(KeyError), self.saver.region("a"):
            raise KeyError
        self.assertIsNone(self.request())
        with self.saver.disable():
            self.assertIsNone(self.request())

    def test_other_threads_are_not_in_the_region(self) -> None:
        found: list[str | None] = []
        with self.saver.region():
            thread = threading.Thread(target=lambda: found.append(self.request()))
            thread.start()
            thread.join()
        self.assertEqual(found, [None])

    def test_disable(self) -> None:
        with self.saver.region("a"):
            self.saver.pause()
            with self.assertRaisesRegex(RuntimeError, "parked"):
                self.request()
            with self.saver.disable():
                self.assertIsNone(self.request())
                with self.saver.region("b"):
                    self.assertEqual(self.request(), name("b", False))
            self.saver.resume()
            self.assertEqual(self.request(), name("a", False))

    def test_again_and_nowhere(self) -> None:
        self.saver.pause()
        self.saver.resume()
        with self.saver.region("a"):
            self.request()
        self.saver.resume()
        self.saver.pause("nowhere")
        self.saver.resume("nowhere")
        self.assertEqual(self.library.calls, [])
        for _ in range(2):
            self.saver.pause("a")
            self.assertEqual(self.parks(), [(name("a", False), parking.DROP)])
        for _ in range(2):
            self.saver.resume("a")
            self.assertEqual(self.library.modes(), {})

    def test_an_empty_tag_is_all(self) -> None:
        with self.saver.region("a"), self.saver.region("b"):
            self.request()
        self.saver.pause("")
        self.assertEqual(len(self.library.modes()), 2)

    def test_a_pause_that_fails_changes_nothing(self) -> None:
        for tag in ("a", "b", "c"):
            with self.saver.region(tag, enable_cpu_backup=True):
                self.request()
        self.saver.pause("a")
        number = parking._tags._numbers[name("c", True)]
        self.library.failures["park", number] = cachalot_gpu.CachalotError("the host lacks the memory", 184)
        with self.assertRaisesRegex(cachalot_gpu.CachalotError, "host lacks"):
            self.saver.pause()
        self.assertEqual(self.library.modes(), {name("a", True): parking.KEEP})

    def test_a_resume_without_memory(self) -> None:
        for tag in ("a", "b", "c"):
            with self.saver.region(tag):
                self.request()
        self.saver.pause()
        number = parking._tags._numbers[name("b", False)]
        self.library.failures["wake_start", number] = cachalot_gpu.OutOfMemoryError("out of memory", 210)
        with self.assertRaises(cachalot_gpu.OutOfMemoryError):
            self.saver.resume()
        self.assertEqual(set(self.library.modes()), {name("b", False), name("c", False)})
        self.library.failures.clear()
        self.saver.resume()
        self.assertEqual(self.library.modes(), {})

    def test_a_graph(self) -> None:
        first: dict[str, object] = {}
        with self.saver.cuda_graph(first, stream="side", capture_error_mode="relaxed", tag="graphs"):
            self.assertEqual(self.request(), name("graphs", False))
            with self.assertRaisesRegex(cachalot_gpu.CachalotError, "cuda_graph"), self.saver.region():
                pass
            with self.assertRaises(cachalot_gpu.CachalotError):
                self.saver.pause()
        self.assertEqual((first["stream"], first["mode"]), ("side", "relaxed"))
        second: dict[str, object] = {}
        with self.saver.cuda_graph(second, tag="graphs"):
            self.request()
        self.assertNotEqual(first["pool"], second["pool"])
        third: dict[str, object] = {}
        with self.saver.cuda_graph(third, pool=first["pool"], tag="graphs"):
            self.request()
        self.assertEqual(first["pool"], third["pool"])
        with (
            self.assertRaisesRegex(cachalot_gpu.CachalotError, "has the tag 'graphs' already"),
            self.saver.cuda_graph({}, pool=first["pool"], tag="other"),
        ):
            pass
        self.saver.pause("graphs")
        self.assertEqual(self.library.modes(), {name("graphs", False): parking.DROP})
        with (
            self.assertRaisesRegex(cachalot_gpu.CachalotError, "'graphs' is paused"),
            self.saver.cuda_graph({}, tag="graphs"),
        ):
            pass

    def test_a_refused_capture_binds_no_pool(self) -> None:
        with self.saver.region("paused"):
            self.request()
        self.saver.pause("paused")
        pool = torch.cuda.MemPool()
        with (
            self.assertRaisesRegex(cachalot_gpu.CachalotError, "'paused' is paused"),
            self.saver.cuda_graph({}, pool=pool, tag="paused"),
        ):
            pass
        with self.saver.cuda_graph({}, pool=pool, tag="other"):
            self.assertEqual(self.request(), name("other", False))

    def test_a_pause_that_fails_in_the_middle_is_undone(self) -> None:
        for tag in ("a", "b"):
            with self.saver.region(tag, enable_cpu_backup=True):
                self.request()
        park, failure = self.library.cachalot_park, cachalot_gpu.CachalotError("a failing driver", 320)

        def half(handle: object, device: int, target: object, options: object) -> None:
            park(handle, device, target, options)
            if len(self.library.asleep) == 2:
                raise failure

        with mock.patch.object(self.library, "cachalot_park", half), self.assertRaisesRegex(RuntimeError, "failing"):
            self.saver.pause()
        self.assertEqual(self.library.asleep, {})

    def test_a_pool_of_the_program(self) -> None:
        pool = torch.cuda.MemPool()
        graph: dict[str, object] = {}
        with self.saver.cuda_graph(graph, pool=pool, enable_cpu_backup=True):
            self.assertEqual(self.request(), name("default", True))
        self.assertEqual(graph["pool"], pool.id)

    def test_every_device(self) -> None:
        for index in (0, 1):
            with torch.cuda.device(index), self.saver.region("a", enable_cpu_backup=True):
                self.assertEqual(self.request(), name("a", True))
        self.saver.pause("a")
        self.assertEqual(len(self.library.asleep), 2)
        self.saver.resume("a")
        self.assertEqual(self.library.asleep, {})

    def test_retained_memory_of_the_host(self) -> None:
        self.assertIs(self.saver.retain_cpu_backup, False)
        self.saver.retain_cpu_backup = True
        self.assertEqual(self.library.retained, {})
        with self.saver.region():
            self.assertGreater(self.library.retained[0], 1 << 50)
        self.saver.retain_cpu_backup = False
        self.assertEqual(self.library.retained, {0: 0})
        with mock.patch.dict(os.environ, TMS_RETAIN_CPU_BACKUP="1"):
            self.assertIs(memory_saver.TorchMemorySaver().retain_cpu_backup, True)

    def test_settings_without_effect(self) -> None:
        self.assertIs(self.saver.enabled, True)
        for mode in ("preload", "torch"):
            self.saver.hook_mode = mode
            self.assertEqual(self.saver.hook_mode, mode)
        with self.assertRaisesRegex(ValueError, "hook_mode"):
            self.saver.hook_mode = "other"
        self.saver.memory_margin_bytes = 0
        for backend in ("mmap", "pinned"):
            with self.saver.region(enable_cpu_backup=True, cpu_backup_backend=backend):
                self.assertEqual(self.request(), name("default", True))
        with memory_saver.configure_subprocess():
            self.assertNotIn("torch_memory_saver", os.environ.get("LD_PRELOAD", ""))

    def test_what_is_not_offered(self) -> None:
        for backend, kept in (("pinned", False), ("paper", True)):
            region = self.saver.region(enable_cpu_backup=kept, cpu_backup_backend=backend)
            with self.assertRaisesRegex(ValueError, "cpu_backup_backend"), region:
                pass
        with self.assertRaisesRegex(NotImplementedError, "disk"), self.saver.region(enable_disk_backup=True):
            pass
        with self.assertRaisesRegex(NotImplementedError, "disk"):
            self.saver.set_disk_backup_dir("/tmp")
        with self.assertRaisesRegex(NotImplementedError, "margin"):
            self.saver.memory_margin_bytes = 1
        with self.assertRaises(NotImplementedError):
            _ = self.saver.memory_margin_bytes
        with (
            mock.patch.dict(os.environ, TMS_INIT_ENABLE="1"),
            self.assertRaisesRegex(NotImplementedError, r"TMS_INIT_ENABLE.*use region\(\)"),
            self.saver.region(),
        ):
            pass
        self.assertEqual(self.library.calls, [])

    def test_backups_that_are_read(self) -> None:
        def tensor(is_cuda: bool = True) -> types.SimpleNamespace:
            device = types.SimpleNamespace(index=0)
            return types.SimpleNamespace(is_cuda=is_cuda, is_contiguous=lambda: True, device=device)

        with self.saver.region(enable_cpu_backup=True):
            self.request()
        self.assertIsNone(self.saver.get_cpu_backup(tensor()))
        self.saver.pause()
        with self.assertRaisesRegex(NotImplementedError, "resume it first"):
            self.saver.get_cpu_backup(tensor(), zero_copy=True)
        with self.assertRaises(ValueError):
            self.saver.get_cpu_backup(tensor(is_cuda=False))
        self.saver.resume()
        self.assertIsNone(self.saver.get_cpu_backup(tensor()))

    def test_the_first_region_enables(self) -> None:
        calls: list[str] = []
        with (
            mock.patch.object(memory_saver._own, "enabled", lambda: bool(calls)),
            mock.patch.object(memory_saver._own, "enable", lambda: calls.append("enable")),
        ):
            for _ in range(2):
                with self.saver.region():
                    pass
        self.assertEqual(calls, ["enable"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
