"""The adapters for other libraries, on the emulated driver.

cuda.core, Numba and RMM are the real ones, from `scripts/setup/adapters.sh`. `gpu/adapters.py` tests CuPy and RMM's
buffers, whose runtime needs a GPU.
"""

from __future__ import annotations

import os
import unittest
from pathlib import Path

from children import STAND_IN, said

LIBRARIES = os.environ.get("CACHALOT_ADAPTERS", "")
RUNTIME = Path(os.environ.get("CACHALOT_LIBCUDA", "")).parent / "libcudart.so.13"

NOTHING = Path("/nonexistent")
"""A folder without libraries."""


def with_libraries(program: str, **variables: str) -> str:
    """Returns what a program prints that finds the real libraries, and the emulated driver in the place of NVIDIA's."""
    # Numba's package has a .pth file, which PYTHONPATH would pass over.
    begin = f"import site; site.addsitedir({LIBRARIES!r})\n"
    return said(begin + program, NOTHING, LD_LIBRARY_PATH=str(RUNTIME.parent), **variables)


class Pool(unittest.TestCase):
    """Requests without a library around them."""

    def test_libraries_are_told_apart(self) -> None:
        program = """
import cachalot_gpu
from cachalot_gpu import _pool
assert _pool.start("policy:stitched")
one, other = _pool.source("one"), _pool.source("other")
assert _pool.source("one") is one
blocks = [one.malloc(1000, 0, 0), one.malloc(2000, 0, 0)]
third = other.malloc(500, 1, 0)
assert one.malloc(0, 0, 0) == 0
one.free(0, 0, 0)
one.free(blocks[0], 1000, 0)
print(cachalot_gpu.usage())
one.free(blocks[1], 2000, 0, 0)
other.free(third, 500, 1, 2)
print(cachalot_gpu.usage())
"""
        wanted = (
            "{'one': {0: Usage(bytes=2000, peak_bytes=3000, blocks=1)},"
            " 'other': {1: Usage(bytes=500, peak_bytes=500, blocks=1)}}\n"
            "{'one': {0: Usage(bytes=0, peak_bytes=3000, blocks=0)},"
            " 'other': {1: Usage(bytes=0, peak_bytes=500, blocks=0)}}\n"
        )
        self.assertEqual(said(program, NOTHING), wanted)

    def test_failures_are_errors_and_change_nothing(self) -> None:
        program = """
import cachalot_gpu
from cachalot_gpu import _pool
_pool.start(None)
source = _pool.source("one")
block = source.malloc(1000, 0, 0)
for size, device in [(1 << 45, 0), (1000, 99)]:
    try:
        source.malloc(size, device, 0)
    except cachalot_gpu.CachalotError as error:
        print(type(error).__name__, isinstance(error, MemoryError))
source.free(block, 1000, 0)
for act in [lambda: source.free(block, 1000, 0), lambda: cachalot_gpu.record_use(block, 0)]:
    try:
        act()
    except cachalot_gpu.CachalotError as error:
        print(error.status)
try:
    _pool.start("policy:none")
except cachalot_gpu.ConfigurationError:
    print("refused")
print(cachalot_gpu.usage())
"""
        wanted = (
            "OutOfMemoryError True\nCachalotError False\n136\n136\nrefused\n"
            "{'one': {0: Usage(bytes=0, peak_bytes=1000, blocks=0)}}\n"
        )
        self.assertEqual(said(program, NOTHING), wanted)

    def test_an_array_and_its_views_are_one_block(self) -> None:
        program = """
import cachalot_gpu, types
from cachalot_gpu import _pool
_pool.start(None)
source = _pool.source("one")
block = source.malloc(1 << 20, 0, 0)
view = types.SimpleNamespace(__cuda_array_interface__={"data": (block + 4096, False)})
cachalot_gpu.record_use(view, types.SimpleNamespace(ptr=2))
cachalot_gpu.record_use(view, types.SimpleNamespace(__cuda_stream__=lambda: (0, 2)))
cachalot_gpu.record_use(block + (1 << 20) - 1, 2)
source.free(block, 1 << 20, 0)
print("well")
"""
        self.assertEqual(said(program, NOTHING), "well\n")

    def test_collections_of_garbage_free_blocks_at_any_moment(self) -> None:
        """A garbage collection may run while a thread counts, allocates or reads the counts, and frees blocks then.
        A lock that is held there would never be released (kvcached 371)."""
        program = """
import faulthandler, gc, sys, threading
import cachalot_gpu
from cachalot_gpu import _pool
faulthandler.dump_traceback_later(100, exit=True)
_pool.start(None)
_pool._Count.LONGEST = 8
source = _pool.source("one")

class Block:
    def __init__(self):
        self.itself = self   # freed by a collection only
        self.address = source.malloc(4096, 0, 0)
    def __del__(self):
        source.free(self.address, 4096, 0)
        cachalot_gpu.usage()

gc.set_threshold(1, 1, 1)
sys.setswitchinterval(1e-6)

def work():
    for _ in range(60):
        Block()
        cachalot_gpu.usage()

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
gc.collect()
usage = cachalot_gpu.usage()["one"][0]
assert (usage.bytes, usage.blocks) == (0, 0) and usage.peak_bytes >= 4096, usage
print("well")
"""
        self.assertEqual(said(program, NOTHING), "well\n")

    def test_a_forked_child_leaves_the_blocks_to_the_parent(self) -> None:
        program = """
import os, cachalot_gpu
from cachalot_gpu import _pool
_pool.start(None)
source = _pool.source("one")
block = source.malloc(1000, 0, 0)
child = os.fork()
if child == 0:
    source.free(block, 1000, 0)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
source.free(block, 1000, 0)
print("well")
"""
        self.assertEqual(said(program, NOTHING), "well\n")

    def test_an_operator_keeps_every_library_as_it_is(self) -> None:
        program = "import cachalot_gpu; print(cachalot_gpu.enable_all(), cachalot_gpu.usage())"
        printed = said(program, NOTHING, CACHALOT_DISABLE="1")
        self.assertIn("() {}\n", printed)
        self.assertIn("the libraries keep their own allocators: CACHALOT_DISABLE is set", printed)

    def test_a_library_that_is_missing_is_named(self) -> None:
        packages = {"cupy": "cupy-cuda13x", "rmm": "rmm-cu13", "numba": "numba-cuda", "cuda_core": "cuda-core"}
        for module, package in packages.items():
            program = f"""
try:
    import cachalot_gpu.{module}
except ModuleNotFoundError as error:
    print(error)
"""
            self.assertRegex(said(program, NOTHING), f"^cachalot_gpu.{module} needs .*: pip install {package}\n$")

    def test_another_module_that_is_missing_is_not_the_library(self) -> None:
        program = """
from cachalot_gpu import _adapter
for name in ("numba_cuda", "numba.cuda", "numbers2", None):
    try:
        with _adapter.importing("numba", "Numba", "numba-cuda"):
            raise ModuleNotFoundError("missing", name=name)
    except ModuleNotFoundError as error:
        print(error)
"""
        library = "cachalot_gpu.numba needs Numba: pip install numba-cuda\n"
        self.assertEqual(said(program, NOTHING), library * 2 + "missing\n" * 2)

    def test_nothing_installed_is_nothing_enabled(self) -> None:
        self.assertEqual(said("import cachalot_gpu; print(cachalot_gpu.enable_all())", NOTHING), "()\n")

    def test_pytorch_is_enabled_with_the_others_and_once(self) -> None:
        program = """
import warnings
warnings.simplefilter("ignore")
import cachalot_gpu, cachalot_gpu.torch
print(cachalot_gpu.enable_all("policy:stitched"), cachalot_gpu.torch.enabled(), cachalot_gpu.enable_all())
"""
        self.assertEqual(said(program, STAND_IN), "('torch',) True ('torch',)\n")

    def test_a_pytorch_without_cuda_is_left_alone(self) -> None:
        program = "import torch; torch.version.cuda = None; import cachalot_gpu; print(cachalot_gpu.enable_all())"
        self.assertEqual(said(program, STAND_IN), "()\n")


AS_CUPY = """
import ctypes, cachalot_gpu
from cachalot_gpu import _cupy_native, _pool
assert _pool.start(None)
current = 0
stream = ctypes.PYFUNCTYPE(ctypes.c_ssize_t)(lambda: current)
source = _cupy_native.Source(_cupy_native._address(stream))
_pool.count("cupy", source)
malloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(source.malloc_address)
free = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(source.free_address)
parameter = source.address
"""
"""Calls the C functions as CuPy does, with the GIL. The current stream is `current`."""


class CuPyWithoutPython(unittest.TestCase):
    """The C functions for CuPy, without CuPy."""

    def test_requests_and_frees_are_counted(self) -> None:
        program = """
one, other = malloc(parameter, 1000, 0), malloc(parameter, 2000, 1)
free(parameter, one, 0)
assert malloc(parameter, 1000, 0) == one, "after the work of the stream"
print(cachalot_gpu.usage())
free(parameter, one, 0)
free(parameter, other, 1)
print(cachalot_gpu.usage())
"""
        wanted = (
            "{'cupy': {0: Usage(bytes=1000, peak_bytes=1000, blocks=1), 1: Usage(bytes=2000, peak_bytes=2000, blocks=1)}}\n"
            "{'cupy': {0: Usage(bytes=0, peak_bytes=1000, blocks=0), 1: Usage(bytes=0, peak_bytes=2000, blocks=0)}}\n"
        )
        self.assertEqual(said(AS_CUPY + program, NOTHING), wanted)

    def test_a_block_freed_under_another_stream_waits_for_it(self) -> None:
        program = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, other = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuStreamCreate(ctypes.byref(other), 1) == 0
size = 8 << 20
block = malloc(parameter, size, 0)
assert cuda.cuMemsetD8Async(ctypes.c_uint64(block), 1, ctypes.c_size_t(size), other) == 0
current = other.value
free(parameter, block, 0)
current = 0
again = malloc(parameter, size, 0)
assert again != block, "the other stream still writes"
assert cuda.cuStreamSynchronize(other) == 0
print(cachalot_gpu.usage()["cupy"][0].blocks)
"""
        folder = str(RUNTIME.parent)
        printed = said(AS_CUPY + program, NOTHING, LD_LIBRARY_PATH=folder, CACHALOT_EMU_DELAY_US="200000")
        self.assertEqual(printed, "1\n")

    def test_failures_are_exceptions_of_their_kind(self) -> None:
        program = """
for size, device in [(1 << 45, 0), (1000, 99)]:
    assert malloc(parameter, size, device) is None
    try:
        source.raise_failure()
    except cachalot_gpu.CachalotError as failure:
        print(type(failure).__name__, isinstance(failure, MemoryError))
block = malloc(parameter, 1000, 0)
free(parameter, block, 0)
free(parameter, block, 0)   # CuPy's memory cannot fail at its end: a line on the standard error
print(cachalot_gpu.usage())
"""
        printed = said(AS_CUPY + program, NOTHING)
        self.assertIn("OutOfMemoryError True\nCachalotError False\n", printed)
        self.assertIn("'cupy': {0: Usage(bytes=0, peak_bytes=1000, blocks=0)}", printed)
        self.assertIn("cachalot: CuPy frees 0x", printed)

    def test_a_request_gives_the_gil_up(self) -> None:
        """A host function of a stream may need the GIL while a request waits for the stream."""
        program = """
taken, given = [], []
save = ctypes.PYFUNCTYPE(ctypes.c_void_p)(lambda: given.append(1) or 7)
restore = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(lambda thread: taken.append(thread))
source.parameter.give_gil_up = _cupy_native._address(save)
source.parameter.take_gil = _cupy_native._address(restore)
free(parameter, malloc(parameter, 1000, 0), 0)
print(given, taken)
"""
        self.assertEqual(said(AS_CUPY + program, NOTHING), "[1] [7]\n")

    def test_a_forked_child_leaves_the_blocks_to_the_parent(self) -> None:
        program = """
import os
block = malloc(parameter, 1000, 0)
child = os.fork()
if child == 0:
    free(parameter, block, 0)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
free(parameter, block, 0)
print("well")
"""
        self.assertEqual(said(AS_CUPY + program, NOTHING), "well\n")

    def test_cupys_stream_is_taken_if_it_has_the_known_type(self) -> None:
        program = """
import ctypes, sys, types
from cachalot_gpu import _cupy_native
new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
modules = [types.ModuleType(name) for name in ("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.stream")]
sys.modules.update({module.__name__: module for module in modules})
modules[0].cuda, modules[1].stream = modules[1:]
print(_cupy_native.current_stream())
names = b"intptr_t (void)", b"intptr_t (int)"
for name in names:
    modules[2].__pyx_capi__ = {"get_current_stream_ptr": new(4096, name, None)}
    print(_cupy_native.current_stream())
"""
        self.assertEqual(said(program, NOTHING), "None\n4096\nNone\n")


@unittest.skipUnless(LIBRARIES, "CACHALOT_ADAPTERS is not set: scripts/setup/adapters.sh")
class CudaCore(unittest.TestCase):
    """cuda.core, as installed."""

    def test_buffers(self) -> None:
        program = """
import cachalot_gpu, cachalot_gpu.cuda_core
from cuda.core import Device
device = Device(0)
device.set_current()
assert cachalot_gpu.cuda_core.enable()
stream, other = device.create_stream(), device.create_stream()
held = lambda: cachalot_gpu.usage()["cuda_core"][0]
buffer = device.allocate(1 << 20, stream=stream)
assert (held().bytes, buffer.size, buffer.device_id) == (1 << 20, 1 << 20, 0)
assert buffer.is_device_accessible and not buffer.is_host_accessible and not buffer.is_managed
source = device.allocate(1 << 20, stream=stream)
source.fill(7, stream=stream)
buffer.copy_from(source, stream=stream)
first = int(buffer.handle)
buffer.close()
assert int(device.allocate(1 << 20, stream=stream).handle) == first, "after the work of the stream"
source.close(other)
del buffer
assert held().blocks == 0, held()
device.allocate(0, stream=stream).close()
try:
    device.allocate(1 << 45, stream=stream)
except cachalot_gpu.OutOfMemoryError:
    print(held().bytes)
second = cachalot_gpu.cuda_core.MemoryResource(1)
assert second.device_id == 1
"""
        self.assertEqual(with_libraries(program), "0\n")

    def test_a_buffer_closed_on_another_stream_waits_for_it(self) -> None:
        program = """
import cachalot_gpu, cachalot_gpu.cuda_core
from cuda.core import Device
device = Device(0)
device.set_current()
cachalot_gpu.cuda_core.enable()
own, other = device.create_stream(), device.create_stream()
size = 4 << 20
wrong = 0
for _ in range(20):
    buffer = device.allocate(size, stream=own)
    own.sync()
    for _ in range(4):
        buffer.fill(1, stream=other)
    buffer.close(other)
    again = device.allocate(size, stream=own)
    again.fill(2, stream=own)
    own.sync()
    other.sync()
    check = bytearray(size)
    from cuda.bindings import driver
    import ctypes
    address = ctypes.addressof(ctypes.c_char.from_buffer(check))
    assert driver.cuMemcpyDtoH(address, int(again.handle), size)[0] == 0
    wrong += check != b"\\2" * size
    again.close()
print(wrong)
"""
        self.assertEqual(with_libraries(program, CACHALOT_EMU_DELAY_US="300"), "0\n")


@unittest.skipUnless(LIBRARIES, "CACHALOT_ADAPTERS is not set: scripts/setup/adapters.sh")
class Rmm(unittest.TestCase):
    """RMM's memory resources, as installed."""

    def test_requests_and_frees(self) -> None:
        program = """
import cachalot_gpu, cachalot_gpu.rmm, rmm
from rmm.pylibrmm.stream import Stream
assert cachalot_gpu.rmm.enable()
resource = rmm.mr.get_per_device_resource(0)
assert isinstance(resource, rmm.mr.CallbackMemoryResource)
held = lambda device: cachalot_gpu.usage()["rmm"][device]
stream = Stream(type("Other", (), {"__cuda_stream__": lambda _: (0, 2)})())
first = resource.allocate(1 << 20, stream)
assert held(0).blocks == 1 and held(0).bytes >= 1 << 20
resource.deallocate(first, 1 << 20, stream)
assert resource.allocate(1 << 20, stream) == first, "after the work of the stream"
resource.deallocate(first, 1 << 20, stream)
assert resource.allocate(1 << 20) not in (0, first), "another stream"
second = rmm.mr.get_per_device_resource(1).allocate(1000)
assert held(1).blocks == 1
rmm.mr.get_per_device_resource(1).deallocate(second, 1000)
print(held(0).blocks, held(1).blocks)
"""
        self.assertEqual(with_libraries(program), "1 0\n")

    def test_failures_are_errors_of_rmm(self) -> None:
        program = """
import cachalot_gpu, cachalot_gpu.rmm, rmm
cachalot_gpu.rmm.enable()
resource = rmm.mr.get_per_device_resource(0)
try:
    resource.allocate(1 << 45)
except MemoryError as error:
    print(str(error).split(". ")[0])
block = resource.allocate(1000)
resource.deallocate(block, 1000)
resource.deallocate(block, 1000)   # RMM's deallocation cannot fail: a warning
print(cachalot_gpu.usage()["rmm"][0].blocks)
"""
        printed = with_libraries(program)
        self.assertIn("out_of_memory: Device out of memory", printed)
        self.assertIn("cachalot: RMM frees 0x", printed)
        self.assertIn("\n0\n", printed)

    def test_adaptors_stand_over_the_resource(self) -> None:
        program = """
import cachalot_gpu, cachalot_gpu.rmm, rmm
resource = cachalot_gpu.rmm.resource(0)
counted = rmm.mr.StatisticsResourceAdaptor(rmm.mr.LimitingResourceAdaptor(resource, 1 << 20))
block = counted.allocate(1000)
try:
    counted.allocate(2 << 20)
except MemoryError:
    print("limited")
print(counted.allocation_counts.current_count, cachalot_gpu.usage()["rmm"][0].blocks)
counted.deallocate(block, 1000)
print(counted.allocation_counts.current_count, cachalot_gpu.usage()["rmm"][0].blocks)
"""
        self.assertEqual(with_libraries(program), "limited\n1 1\n0 0\n")

    def test_threads_allocate_and_free(self) -> None:
        program = """
import threading, cachalot_gpu, cachalot_gpu.rmm, rmm
cachalot_gpu.rmm.enable()
resource = rmm.mr.get_per_device_resource(0)

def work(seed):
    held = []
    for step in range(200):
        size = 512 + (seed * 7919 + step * 104729) % 100000
        held.append((resource.allocate(size), size))
        if step % 3:
            resource.deallocate(*held.pop(step % len(held)))
    for block in held:
        resource.deallocate(*block)

threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(cachalot_gpu.usage()["rmm"][0].blocks)
"""
        self.assertEqual(with_libraries(program), "0\n")


@unittest.skipUnless(LIBRARIES, "CACHALOT_ADAPTERS is not set: scripts/setup/adapters.sh")
@unittest.skipUnless(RUNTIME.is_file(), f"no {RUNTIME}: emulated-driver install --runtime")
class Numba(unittest.TestCase):
    """Numba, as installed."""

    def test_arrays(self) -> None:
        program = """
import numpy, cachalot_gpu, cachalot_gpu.numba
assert cachalot_gpu.numba.enable()
from numba import cuda
held = lambda: cachalot_gpu.usage()["numba"][0]
array = cuda.to_device(numpy.arange(1000.0))
view = array[10:]
assert held().bytes == 8000 and array.copy_to_host().sum() == 499500
cachalot_gpu.record_use(view, cuda.stream())
del array
assert held().blocks == 1
del view
assert held() == (0, 8000, 0)
assert cuda.device_array(0).size == 0
info = cuda.current_context().get_memory_info()
assert 0 < info.free < info.total == 1 << 30
try:
    cuda.device_array(1 << 45, "u1")
except cachalot_gpu.OutOfMemoryError:
    print("out of memory")
"""
        self.assertEqual(with_libraries(program), "out of memory\n")

    def test_memory_freed_under_one_stream_serves_another_in_order(self) -> None:
        """Without the barrier of a free, the first stream writes into the memory of the second in most rounds."""
        program = """
import numpy, cachalot_gpu.numba
cachalot_gpu.numba.enable()
from numba import cuda
from numba.cuda.cudadrv.driver import driver
manager = cuda.current_context().memory_manager
one, other = cuda.stream(), cuda.stream()
size, wrong, same = 4 << 20, 0, 0
for _ in range(20):
    first = manager.memalloc(size)
    address = int(first.handle)
    for _ in range(4):
        driver.cuMemsetD8Async(address, 1, size, one.handle)
    del first
    second = manager.memalloc(size)
    same += int(second.handle) == address
    driver.cuMemsetD8Async(int(second.handle), 2, size, other.handle)
    cuda.synchronize()
    check = numpy.empty(size, "u1")
    driver.cuMemcpyDtoH(check.ctypes.data, int(second.handle), size)
    wrong += not (check == 2).all()
    del second
print(same, wrong)
"""
        self.assertEqual(with_libraries(program, CACHALOT_EMU_DELAY_US="300"), "20 0\n")

    def test_a_thread_without_a_context_may_drop_an_array(self) -> None:
        program = """
import threading, numpy, cachalot_gpu, cachalot_gpu.numba
cachalot_gpu.numba.enable()
from numba import cuda
from numba.cuda.cudadrv.driver import driver
arrays = [cuda.to_device(numpy.zeros(1000))]

def drop():
    arrays.clear()
    assert int(driver.cuCtxGetCurrent()) == 0, "the thread is as before"

thread = threading.Thread(target=drop)
thread.start()
thread.join()
print(cachalot_gpu.usage()["numba"][0].blocks)
"""
        self.assertEqual(with_libraries(program), "0\n")

    def test_numba_takes_the_manager_from_a_variable(self) -> None:
        program = """
import numpy, cachalot_gpu
from numba import cuda
array = cuda.to_device(numpy.zeros(10))
print(cachalot_gpu.usage()["numba"][0].bytes)
"""
        self.assertEqual(with_libraries(program, NUMBA_CUDA_MEMORY_MANAGER="cachalot_gpu.numba"), "80\n")

    def test_a_manager_in_use_is_not_replaced(self) -> None:
        program = """
import numpy, cachalot_gpu, cachalot_gpu.numba
from numba import cuda
array = cuda.to_device(numpy.zeros(10))
try:
    cachalot_gpu.numba.enable()
except cachalot_gpu.UnavailableError as error:
    print(error)
"""
        self.assertIn("enable() must come before the first use of a GPU", with_libraries(program))

    def test_all_libraries_share_one_pool(self) -> None:
        program = """
import numpy, cachalot_gpu
from cuda.core import Device
print(cachalot_gpu.enable_all("policy:stitched"))
from numba import cuda
import rmm
rmm.mr.get_per_device_resource(0).deallocate(rmm.mr.get_per_device_resource(0).allocate(8 << 20), 8 << 20)
array = cuda.to_device(numpy.zeros(1 << 20))
device = Device(0)
device.set_current()
legacy = device.create_stream(type("Legacy", (), {"__cuda_stream__": lambda _: (0, 1)})())
address = array.__cuda_array_interface__["data"][0]
del array
buffer = device.allocate(8 << 20, stream=legacy)
assert int(buffer.handle) == address, "memory that Numba has freed serves cuda.core"
print({name: devices[0].bytes for name, devices in cachalot_gpu.usage().items()})
"""
        self.assertEqual(
            with_libraries(program), "('rmm', 'numba', 'cuda_core')\n{'cuda_core': 8388608, 'numba': 0, 'rmm': 0}\n"
        )


if __name__ == "__main__":
    unittest.main()
