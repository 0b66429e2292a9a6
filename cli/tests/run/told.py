"""Prints what NVML, opened by ctypes, tells of device 0: total, used and free in MiB."""
import ctypes
import sys


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


nvml = ctypes.CDLL(sys.argv[1])
device, memory = ctypes.c_void_p(), Memory()
for code in (nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)),
             nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))):
    assert code == 0, code
print(memory.total >> 20, memory.used >> 20, memory.free >> 20)
