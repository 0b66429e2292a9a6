"""Lets PyTorch trace a backward pass for CUDA on a machine without a GPU.

PyTorch's build without CUDA needs nothing. In its build with CUDA, the autograd engine asks the
CUDA runtime for the current device and stream, also for fake tensors. A small library that is
compiled and loaded here answers these questions for a device that does not exist. No kernel is
ever launched.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .errors import CachalotError

_SOURCE = """
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaSetDevice(int device) { return 0; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return 0; }
int cudaStreamIsCapturing(void *stream, int *status) { *status = 0; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 0; return 0; }
"""
"""The runtime's and the driver's functions that the engine calls."""

_REFUSED = """
    cuCtxGetCurrent cuCtxGetLimit cuCtxPopCurrent cuCtxPushCurrent cuDeviceGet cuDeviceGetCount cuDriverGetVersion
    cuFuncGetAttribute cuFuncSetAttribute cuGetErrorName cuGetErrorString cuKernelGetAttribute cuKernelGetFunction
    cuKernelGetName cuKernelGetParamInfo cuKernelSetAttribute cuKernelSetCacheConfig cuLaunchCooperativeKernel
    cuLaunchKernel cuLaunchKernelEx cuLibraryGetGlobal cuLibraryGetKernel cuLibraryGetKernelCount cuLibraryGetModule
    cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload cuLinkAddData cuLinkComplete cuLinkCreate cuLinkDestroy
    cuModuleGetFunction cuModuleLoadData cuModuleLoadDataEx cuModuleUnload
    cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxActiveClusters cuOccupancyMaxPotentialClusterSize
    cuStreamGetCtx cuTensorMapEncodeIm2col cuTensorMapEncodeTiled
"""
"""Functions of the driver for which cuDNN looks when it is asked about a GPU. It complains of those
that are missing, and none of these is of use without a device: they return CUDA_ERROR_NO_DEVICE."""

_loaded = False


def load() -> None:
    """Loads the library, unless there is a GPU. Only before PyTorch is loaded does PyTorch find the
    functions.

    Raises:
        CachalotError: there is no C compiler.
    """
    global _loaded
    if not _loaded and "torch" not in sys.modules and not _has_driver():
        _load()
        _loaded = True


def prepare() -> None:
    """Makes the backward pass of fake CUDA tensors possible.

    Raises:
        CachalotError: PyTorch's build has CUDA, and was loaded before the library.
    """
    import torch

    if torch.version.cuda is None or _has_driver():
        return
    if not _loaded:
        raise CachalotError(
            "on a machine without a GPU, PyTorch's CUDA build needs `import cachalot_gpu.predict` before "
            "`import torch`, or python -m cachalot_gpu.predict SCRIPT"
        )
    # The device exists for the autograd engine alone.
    torch.cuda.is_available = lambda: False
    torch.cuda.device_count = lambda: 0


def _has_driver() -> bool:
    """Returns whether a CUDA driver with a device is installed. Does not ask PyTorch, which keeps
    its first answer."""
    if _loaded:
        return False
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def _load() -> None:
    """Compiles and loads the library. Its name is the driver's, so that PyTorch's own libraries
    find it where they ask for the driver."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise CachalotError(
            "predictions with PyTorch's CUDA build need a C compiler on a machine without a GPU: install one, or "
            "PyTorch's build for the CPU"
        )
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "no_gpu.c", Path(folder) / "libcuda.so.1"
        refused = [f"int {name}(void) {{ return 100; }}\n" for name in _REFUSED.split()]
        source.write_text(_SOURCE + "".join(refused))
        command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CachalotError(f"{compiler} does not compile a library: {done.stderr.strip()}")
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
