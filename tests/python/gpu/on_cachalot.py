"""A plugin of pytest that runs a library's tests on cachalot: `pytest -p on_cachalot`.

For `suites.py`. `CACHALOT_SUITE` names the library. Tests that set another allocator find cachalot
again in the next test. In cuda.core's tests, cachalot is the memory resource of every device that the
test has given none, and takes the place of the tests' own resource of the device's memory; tests of the
driver's pools keep the driver's pools. After each test, its process writes the most bytes that the library
has held to a file in `CACHALOT_SUITE_USED`, so that a run without cachalot is noticed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cachalot_gpu

SUITE = os.environ["CACHALOT_SUITE"]


def _serve_cuda_core() -> None:
    """Makes cachalot the memory resource of new `Device` objects, of which each thread and many a test has its own."""
    from cachalot_gpu.cuda_core import MemoryResource
    from cuda.core import Device

    theirs: Any = Device.memory_resource

    def resource(device: Any) -> Any:
        if device._memory_resource is None:
            device._memory_resource = MemoryResource(device.device_id)
        return device._memory_resource

    Device.memory_resource = property(resource, theirs.__set__)


def _serve_their_tests() -> None:
    """Takes the place of a resource in cuda.core's tests that calls `cuMemAlloc`, and lets a request name no stream."""
    from cachalot_gpu.cuda_core import MemoryResource
    from helpers import buffers

    class OfTheTests(MemoryResource):
        def __init__(self, device: Any) -> None:
            super().__init__(device)
            self.device = device

        def allocate(self, size: int, *, stream: Any = None) -> Any:
            return super().allocate(size, stream=stream or self.device.default_stream)

        def deallocate(self, ptr: Any, size: int, *, stream: Any = None) -> None:
            super().deallocate(ptr, size, stream=stream or self.device.default_stream)

    buffers.DummyDeviceMemoryResource = OfTheTests


def _enable() -> None:
    """Makes cachalot the allocator of the library."""
    adapter = importlib.import_module(f"cachalot_gpu.{SUITE}")
    assert adapter.enable()


def pytest_configure() -> None:
    """Enables cachalot before the tests are imported. Numba finds its manager by a variable."""
    if SUITE == "cuda_core":
        _serve_cuda_core()
    elif SUITE != "numba":
        _enable()


def pytest_collection() -> None:
    """Serves cuda.core's tests, whose helpers can be imported by now."""
    if SUITE == "cuda_core":
        _serve_their_tests()


@pytest.fixture(autouse=True)
def _cachalot_again() -> Iterator[None]:
    if SUITE not in ("numba", "cuda_core"):
        _enable()
    yield
    _note()


def _note() -> None:
    """Writes the most bytes that cachalot has served in this process."""
    held = cachalot_gpu.usage().get(SUITE, {})
    peak = max((usage.peak_bytes for usage in held.values()), default=0)
    (Path(os.environ["CACHALOT_SUITE_USED"]) / str(os.getpid())).write_text(str(peak))
