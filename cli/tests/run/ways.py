"""Opens the driver by ctypes, and prints whose three functions are, as ways.c does."""
import ctypes
import sys


class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def whose(address):
    info = Info()
    if not address or not ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(info)):
        return "-"
    ours = info.file.endswith(b"/libcuda.so.1") and b"/cachalot-run-" in info.file
    return "S" if ours else "R"


driver = ctypes.CDLL(sys.argv[1])
functions = [driver.cuMemAlloc_v2, driver.cuDeviceGetCount, driver.cuGetProcAddress_v2]
letters = "".join(whose(ctypes.cast(function, ctypes.c_void_p).value) for function in functions)
found = [ctypes.c_void_p(), ctypes.c_void_p()]
for name, address in zip([b"cuMemAlloc", b"cuDeviceGetCount"], found):
    code = driver.cuGetProcAddress_v2(name, ctypes.byref(address), 12000, ctypes.c_uint64(0), None)
    assert code == 0, code
print(letters, "".join(whose(address.value) for address in found))
