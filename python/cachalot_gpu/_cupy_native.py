"""CuPy's requests without a function in Python: C functions for CuPy's ``CFunctionAllocator``.

CuPy gives such functions no stream, so they ask CuPy's own C function for the current one, which
CuPy's modules share with each other.
"""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_char_p, c_int64, c_void_p, py_object, pythonapi
from typing import Any

from . import _files, _handle, _library, _pool

_STREAM_NAME = "get_current_stream_ptr"
_STREAM_TYPE = b"intptr_t (void)"
"""The function of ``cupy_backends.cuda.stream``, and its type as CuPy states it."""

DEVICES = 64


class Held(Structure):
    """The memory of CuPy on a device."""

    _fields_ = [("bytes", c_int64), ("peak_bytes", c_int64), ("blocks", c_int64)]


class Parameter(Structure):
    """The state of the C functions: ``Source`` in ``ffi/cupy/allocator.cpp``."""

    _fields_ = [
        ("allocator", c_void_p),
        ("current_stream", c_void_p),
        ("give_gil_up", c_void_p),
        ("take_gil", c_void_p),
        ("exception", c_void_p),
        ("clear", c_void_p),
        ("held", Held * DEVICES),
    ]


def _address(function: Any) -> int:
    """Returns the address of a function of ``ctypes``."""
    return ctypes.cast(function, c_void_p).value or 0


def current_stream() -> int | None:
    """Returns the address of CuPy's function for the current stream. ``None`` if this CuPy has none
    of the known type."""
    from cupy_backends.cuda import stream

    capsule = getattr(stream, "__pyx_capi__", {}).get(_STREAM_NAME)
    if capsule is None:
        return None
    name_of = ctypes.PYFUNCTYPE(c_char_p, py_object)(_address(pythonapi.PyCapsule_GetName))
    pointer_of = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(_address(pythonapi.PyCapsule_GetPointer))
    if name_of(capsule) != _STREAM_TYPE:
        return None
    pointer: int | None = pointer_of(capsule, _STREAM_TYPE)
    return pointer


class Source:
    """CuPy's requests, counted by the C functions. Lasts until the end of the process."""

    def __init__(self, stream: int) -> None:
        """Prepares the functions; ``stream`` is the address of the one for the current stream."""
        # The symbols of the library must be there first.
        _library.library()
        self._functions = ctypes.PyDLL(str(_files.CUPY))
        handle = _handle.require()
        self.parameter = Parameter(
            handle.value,
            stream,
            _address(pythonapi.PyEval_SaveThread),
            _address(pythonapi.PyEval_RestoreThread),
            _address(pythonapi.PyErr_Occurred),
            _address(pythonapi.PyErr_Clear),
        )
        # CuPy's memory has the bare address, and may outlive this module when Python ends.
        pythonapi.Py_IncRef(py_object(self.parameter))
        self.malloc_address = _address(self._functions.cachalot_cupy_malloc)
        self.free_address = _address(self._functions.cachalot_cupy_free)
        self._failed = self._functions.cachalot_cupy_failed
        self._failed.restype = _library.Status

    @property
    def address(self) -> int:
        """The address of the parameter."""
        return ctypes.addressof(self.parameter)

    def raise_failure(self) -> None:
        """Raises the exception of the calling thread's last request that failed. Returns if CuPy
        could not tell the current stream."""
        _library.raise_failure(_library.library(), self._failed())

    def usage(self) -> dict[int, _pool.Usage]:
        """Returns the memory of CuPy by device."""
        used = {device: held for device, held in enumerate(self.parameter.held) if held.peak_bytes}
        return {device: _pool.Usage(held.bytes, held.peak_bytes, held.blocks) for device, held in used.items()}
