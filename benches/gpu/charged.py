"""Asks whether the kernel charges memory of the host that a GPU's driver makes to the control group of the process.

    python3 benches/gpu/charged.py OUT [--gib 4]

A process that is alone in a new control group makes host memory in each way in turn: `cuMemCreate` at HOST_NUMA and at HOST, which is
what `spill` maps, `cuMemHostAlloc`, and plain memory of the kernel (`mmap`) to compare with. `OUT/charged.csv` gets what the group and
the system report before, with the memory, with the memory mapped for the device, and after it was given back, in MiB. Then a process in
a group with a limit of a quarter of the size makes HOST_NUMA memory until the driver refuses it or the kernel ends the process, and
`OUT/charged_limit.csv` says how far it came. Needs a GPU and root, and takes less than 20 s. Version 1 or 2 of control groups is used,
whichever is mounted or can be mounted. Where no group can be made, the process's own group is read, and the limit is left out.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MIB, GIB = 1 << 20, 1 << 30
CHUNK = 64 * MIB
PINNED, DEVICE, HOST, HOST_NUMA = 1, 1, 2, 3
READ_WRITE, RECOMMENDED = 3, 1
NODE_OF_DEVICE = 134
MAP_POPULATE = 0x8000
USED = {"2": "memory.current", "1": "memory.usage_in_bytes"}
LIMIT = {"2": "memory.max", "1": "memory.limit_in_bytes"}
OF_GROUP = ("anon", "file", "kernel", "shmem", "unevictable", "rss", "cache")
OF_SYSTEM = ("MemFree", "MemAvailable", "Unevictable", "Mlocked")
OF_PROCESS = ("VmRSS", "VmPin", "VmLck")


class Location(ctypes.Structure):
    """`CUmemLocation`."""

    _fields_ = [("kind", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    """`CUmemAllocationProp`."""

    _fields_ = [
        ("kind", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class Driver:
    """The driver, with a current context of device 0. A call that fails raises `OSError` with its code."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context, node = ctypes.c_void_p(), ctypes.c_int(0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuDeviceGetAttribute", ctypes.byref(node), NODE_OF_DEVICE, 0)
        self.node = max(node.value, 0)

    def call(self, name: str, *values: object) -> None:
        """Calls a function of the driver."""
        code = getattr(self.library, name)(*values)
        if code:
            raise OSError(code, f"{name} answers {code}")

    def create(self, kind: int) -> ctypes.c_ulonglong:
        """Makes a chunk of host memory."""
        properties = Properties(kind=PINNED, location=Location(kind, self.node if kind == HOST_NUMA else 0))
        handle = ctypes.c_ulonglong()
        self.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(CHUNK), ctypes.byref(properties), ctypes.c_ulonglong(0))
        return handle


class Pages:
    """Host memory made by `cuMemCreate`, and mapped for the device."""

    def __init__(self, driver: Driver, bytes_: int, kind: int) -> None:
        self.driver, self.bytes = driver, bytes_
        self.base = ctypes.c_ulonglong()
        self.handles = [driver.create(kind) for _ in range(bytes_ // CHUNK)]

    def map(self) -> None:
        """Maps the memory, and sets all its bytes by the device."""
        call, size = self.driver.call, ctypes.c_size_t(self.bytes)
        call("cuMemAddressReserve", ctypes.byref(self.base), size, ctypes.c_size_t(0), ctypes.c_ulonglong(0), ctypes.c_ulonglong(0))
        for index, handle in enumerate(self.handles):
            at = ctypes.c_ulonglong(self.base.value + index * CHUNK)
            call("cuMemMap", at, ctypes.c_size_t(CHUNK), ctypes.c_size_t(0), handle, ctypes.c_ulonglong(0))
        access = Access(Location(DEVICE, 0), READ_WRITE)
        call("cuMemSetAccess", self.base, size, ctypes.byref(access), ctypes.c_size_t(1))
        call("cuMemsetD8_v2", self.base, ctypes.c_ubyte(0xA5), size)
        call("cuCtxSynchronize")

    def free(self) -> None:
        """Gives the memory back."""
        self.driver.call("cuMemUnmap", self.base, ctypes.c_size_t(self.bytes))
        self.driver.call("cuMemAddressFree", self.base, ctypes.c_size_t(self.bytes))
        for handle in self.handles:
            self.driver.call("cuMemRelease", handle)


class Pinned:
    """Pinned memory made by `cuMemHostAlloc`, which devices reach without another call."""

    def __init__(self, driver: Driver, bytes_: int) -> None:
        self.driver, self.base = driver, ctypes.c_void_p()
        driver.call("cuMemHostAlloc", ctypes.byref(self.base), ctypes.c_size_t(bytes_), 0)

    def map(self) -> None:
        """Does nothing."""

    def free(self) -> None:
        """Gives the memory back."""
        self.driver.call("cuMemFreeHost", self.base)


class Plain:
    """Memory of the kernel, touched when it is made."""

    def __init__(self, bytes_: int) -> None:
        self.memory = mmap.mmap(-1, bytes_, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_POPULATE)

    def map(self) -> None:
        """Does nothing."""

    def free(self) -> None:
        """Gives the memory back."""
        self.memory.close()


def entries(file: Path, names: tuple[str, ...], unit: int) -> dict[str, float]:
    """Returns those of the names that a file of the system has, in MiB."""
    lines = (line.replace(":", "").split() for line in file.read_text().splitlines()) if file.is_file() else ()
    return {words[0]: int(words[1]) * unit / MIB for words in lines if words and words[0] in names}


def readings(version: str, group: str) -> dict[str, float]:
    """Returns what the group, the system and the process report now, in MiB."""
    found = {}
    if version != "none":
        found[USED[version]] = int((Path(group) / USED[version]).read_text()) / MIB
        found.update({f"memory.stat {name}": value for name, value in entries(Path(group) / "memory.stat", OF_GROUP, 1).items()})
    for file, names in (("meminfo", OF_SYSTEM), ("self/status", OF_PROCESS)):
        found.update({f"{file} {name}": value for name, value in entries(Path("/proc") / file, names, 1024).items()})
    return found


def measure(version: str, group: str, bytes_: int) -> None:
    """Prints the readings of each way, as lines of a CSV file. Runs in the group."""
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(["memory", "seconds to make it", "reading", "before", "made", "mapped", "given back"])
    driver = Driver()
    ways: dict[str, Callable[[], Pages | Pinned | Plain]] = {
        "mmap": lambda: Plain(bytes_),
        "cuMemCreate HOST_NUMA": lambda: Pages(driver, bytes_, HOST_NUMA),
        "cuMemCreate HOST": lambda: Pages(driver, bytes_, HOST),
        "cuMemHostAlloc": lambda: Pinned(driver, bytes_),
    }
    for name, make in ways.items():
        at, started = [readings(version, group)], time.monotonic()
        try:
            memory = make()
        except OSError as error:
            rows.writerow([name, "", error, "", "", "", ""])
            continue
        seconds = time.monotonic() - started
        for act in (memory.map, memory.free):
            at.append(readings(version, group))
            act()
        at.append(readings(version, group))
        for reading in at[0]:
            rows.writerow([name, f"{seconds:.2f}", reading, *(f"{each.get(reading, 0):.0f}" for each in at)])


def fill(version: str, group: str, bytes_: int) -> None:
    """Sets the group's limit a quarter of the bytes above what it has, and makes HOST_NUMA memory until one of the two ends it."""
    driver = Driver()
    used = readings(version, group)[USED[version]]
    (Path(group) / LIMIT[version]).write_text(str(int(used * MIB) + bytes_ // 4))
    for made in range(CHUNK, bytes_ + CHUNK, CHUNK):
        try:
            driver.create(HOST_NUMA)
        except OSError as error:
            print(f"refused: {error}", flush=True)
            return
        print(f"{made // MIB}", flush=True)


def mounted(kind: str) -> Path | None:
    """Returns where a hierarchy with the memory controller is mounted: `cgroup2`, or `cgroup` of version 1."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, found, options = line.split()[:4]
        of_memory = "memory" in options.split(",")
        if found == "cgroup2":
            controllers = Path(place) / "cgroup.controllers"
            of_memory = controllers.is_file() and "memory" in controllers.read_text().split()
        if found == kind and of_memory:
            return Path(place)
    return None


def mount(kind: str) -> Path | None:
    """Mounts a hierarchy at a new place, if that is allowed."""
    place = tempfile.mkdtemp(prefix="cgroup")
    options = ["-o", "memory"] if kind == "cgroup" else []
    ended = subprocess.run(["mount", "-t", kind, *options, "none", place], stderr=subprocess.DEVNULL, check=False)
    return None if ended.returncode else mounted(kind)


def own(place: Path, version: str) -> Path:
    """Returns the folder of this process's group in a hierarchy."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if (version == "2" and not controllers) or (version == "1" and "memory" in controllers.split(",")):
            folder = place / path.lstrip("/")
            return folder if folder.is_dir() else place
    return place


@contextmanager
def new_group() -> Iterator[tuple[str, str, bool]]:
    """Makes a control group, and removes it. Gives its version and folder, and whether it is new."""
    found = ("none", "", False)
    for kind, version in (("cgroup2", "2"), ("cgroup", "1")):
        place = mounted(kind) or mount(kind)
        if place is None:
            continue
        for parent in dict.fromkeys((own(place, version), place)):
            group = parent / f"charged-{os.getpid()}"
            try:
                if version == "2":
                    (parent / "cgroup.subtree_control").write_text("+memory")
                group.mkdir()
            except OSError as error:
                print(f"no group in {parent}: {error}", file=sys.stderr)
            else:
                if (group / USED[version]).is_file():
                    try:
                        yield version, str(group), True
                    finally:
                        group.rmdir()
                    return
                group.rmdir()
            if (parent / USED[version]).is_file():
                found = (version, str(parent), False)
    yield found


def main() -> None:
    """Runs the two processes, and writes what they say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--within", nargs=3, metavar=("WAY", "VERSION", "GROUP"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    bytes_ = int(given.gib * GIB)
    if given.within:
        way, version, group = given.within
        {"measure": measure, "fill": fill}[way](version, group, bytes_)
        return
    given.out.mkdir(parents=True, exist_ok=True)

    def within(way: str, version: str, group: str, enters: bool) -> subprocess.CompletedProcess[str]:
        """Runs this script's other part, in the group from its first instruction."""
        script = [sys.executable, __file__, str(given.out), "--gib", str(given.gib), "--within", way, version, group]
        enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"' if enters else 'exec "$@"'
        return subprocess.run(["sh", "-c", enter, group, *script], stdout=subprocess.PIPE, text=True, timeout=60, check=False)

    with new_group() as (version, group, new):
        print(f"control group: version {version}, {'new' if new else 'the own one'} {group}")
        measured = within("measure", version, group, new)
        print(measured.stdout, end="")
        (given.out / "charged.csv").write_text(measured.stdout)
        if new:
            filled = within("fill", version, group, new)
            last = (filled.stdout.splitlines() or [""])
            made = max((int(line) for line in last if line.isdigit()), default=0)
            rows = [["limit above the start, MiB", "made, MiB", "end"]]
            rows.append([f"{bytes_ // 4 // MIB}", str(made), f"status {filled.returncode} {last[-1] if not last[-1].isdigit() else ''}".strip()])
            print("\n".join(",".join(row) for row in rows))
            with (given.out / "charged_limit.csv").open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
