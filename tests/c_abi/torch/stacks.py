"""Python stacks, by ctypes: which frames events have, with Python's lock held and not, on other threads, amid errors.

    stacks.py LIBCACHALOT CAPSULE        on the emulated driver; CAPSULE: the library made of capsule.c
"""

import ctypes
import gc
import json
import sys
import threading

# The first gives Python's lock up during a call, as PyTorch does; the second keeps it.
library, holding = ctypes.CDLL(sys.argv[1]), ctypes.PyDLL(sys.argv[1])
for each in (library, holding):
    each.cachalot_torch_malloc.restype = ctypes.c_void_p
    each.cachalot_torch_malloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    each.cachalot_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    each.cachalot_last_error.restype = ctypes.c_char_p


def needed(status):
    assert status == 0, library.cachalot_last_error()


def outer(by):
    def inner():
        return by.cachalot_torch_malloc(1000, 0, None)

    return inner()


def events():
    """The recorded events, oldest first: action, and the stack's functions from the innermost on."""
    parts = []
    writer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)
    write = writer(lambda _, part, size: parts.append(part[:size]) or 0)
    needed(library.cachalot_snapshot(handle, None, write, None))
    return json.loads(b"".join(parts))["device_traces"][0]


def functions(event):
    return [frame["name"] for frame in event.get("frames", [])]


handle = ctypes.c_void_p()
needed(library.cachalot_torch_allocator(ctypes.byref(handle)))
needed(library.cachalot_trace_start(handle, 0, ctypes.c_size_t(10000)))
library.cachalot_torch_free(outer(library), 1000, 0, None)
assert all(functions(event) == [] for event in events()), "nobody has asked for stacks"

needed(library.cachalot_torch_record_stacks(1))
for by in (library, holding):
    needed(library.cachalot_trace_start(handle, 0, ctypes.c_size_t(10000)))
    block = outer(by)
    by.cachalot_torch_free(block, 1000, 0, None)
    alloc, freed = [event for event in events() if event["action"] in ("alloc", "free_requested")]
    assert functions(alloc) == ["inner", "outer", "<module>"], alloc
    first = alloc["frames"][0]
    assert first["filename"] == __file__ and first["line"] == outer.__code__.co_firstlineno + 2, first
    assert functions(freed) == ["<module>"], freed

# A thread of Python's has its own stack; what is not Python's has none.
needed(library.cachalot_trace_start(handle, 0, ctypes.c_size_t(10000)))
thread = threading.Thread(target=outer, args=(library,))
thread.start()
thread.join()
(alloc,) = [event for event in events() if event["action"] == "alloc"]
assert functions(alloc)[:3] == ["inner", "outer", "run"], alloc

# A thread that Python does not know has no frames, and does not wait for the lock, which is held here until it has ended.
block = outer(library)
process = ctypes.PyDLL(None)
identifier = ctypes.c_ulong()
start = ctypes.cast(library.cachalot_torch_free, ctypes.c_void_p)
needed(process.pthread_create(ctypes.byref(identifier), None, start, ctypes.c_void_p(block)))
needed(process.pthread_join(identifier, None))
assert [event["action"] for event in events()][-1] == "free_completed"

# An error that is on its way while a block dies stays what it is.
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
destructor = ctypes.cast(ctypes.CDLL(sys.argv[2]).free_block_of, ctypes.c_void_p)


def fails():
    yield new_capsule(outer(library), None, destructor)
    raise KeyError("mine")


needed(library.cachalot_trace_start(handle, 0, ctypes.c_size_t(10000)))
try:
    list(fails())
except KeyError as error:
    assert error.args == ("mine",)
assert [event["action"] for event in events()][-1] == "free_completed"

# Nothing is kept: neither frames nor what they hold, nor references to code.
before = sys.getrefcount(outer.__code__), sys.getrefcount(outer.__code__.co_name)


class Held:
    alive = 0

    def __init__(self):
        Held.alive += 1

    def __del__(self):
        Held.alive -= 1


def holds():
    held = Held()
    holding.cachalot_torch_free(outer(holding), 1000, 0, None)
    return held is None


for _ in range(1000):
    holds()
gc.collect()
after = sys.getrefcount(outer.__code__), sys.getrefcount(outer.__code__.co_name)
assert Held.alive == 0 and before == after, (Held.alive, before, after)

# A name that is no text for others.
exec(compile("def odd_\u00e9():\n    return outer(library)\n", "caf\u00e9\udcff.py", "exec"))
needed(library.cachalot_trace_start(handle, 0, ctypes.c_size_t(10000)))
odd_é()
(alloc,) = [event for event in events() if event["action"] == "alloc"]
assert functions(alloc)[2] == "odd_é" and alloc["frames"][2]["filename"] == "", alloc

needed(library.cachalot_torch_record_stacks(0))
needed(library.cachalot_trace_start(handle, 0, ctypes.c_size_t(10000)))
outer(library)
(alloc,) = [event for event in events() if event["action"] == "alloc"]
assert functions(alloc) == [], alloc
print("stacks: as they are")
