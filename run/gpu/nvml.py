"""Asks NVML inside of programs under a limit, on a real driver (`cachalot run --nvml`).

    python3 run/gpu/nvml.py OUT --command COMMAND

COMMAND is the built `cachalot`. Needs a GPU, and neither a compiler nor a library of Python. Each program asks NVML and
the driver before and after it takes 1 GiB: with a limit of 8 GiB, in a group in which another program holds 2 GiB, and
without `--nvml`. `nvidia-smi` is asked under the limit, too. OUT gets `nvml.json`, and a line says what is wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
from pathlib import Path

GIB = 1 << 30
LIMIT = 8 * GIB


class Memory(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Memory2(ctypes.Structure):
    """`nvmlMemory_v2_t`."""

    _fields_ = [("version", ctypes.c_uint)] + [(name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")]


def checked(code: int) -> None:
    """Ends the program unless a call has succeeded."""
    if code:
        raise SystemExit(f"code {code}")


def program(take: int, wait: bool) -> None:
    """Prints what NVML and the driver say before and after a request, and waits for the end of the input if asked to."""
    nvml, cuda = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL("libcuda.so.1")
    device, name, count = ctypes.c_void_p(), ctypes.create_string_buffer(96), ctypes.c_uint(0)
    checked(nvml.nvmlInit_v2())
    checked(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)))
    checked(nvml.nvmlDeviceGetName(device, name, 96))
    told = {"name": name.value.decode(), "steps": []}

    def ask() -> dict[str, int]:
        one, two = Memory(), Memory2(version=ctypes.sizeof(Memory2) | 2 << 24)
        checked(nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(one)))
        newer = nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(two)) == 0
        said = {key: getattr(one, key) for key in ("total", "free", "used")}
        if newer:
            said["second"] = [two.total, two.reserved, two.free, two.used]
        return said

    told["steps"].append({"nvml": ask()})
    context, address = ctypes.c_void_p(), ctypes.c_ulonglong()
    checked(cuda.cuInit(0))
    checked(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    checked(cuda.cuCtxSetCurrent(context))
    checked(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(take)))
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    checked(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    told["steps"].append({"nvml": ask(), "driver": {"total": total.value, "free": free.value}})
    print(json.dumps(told), flush=True)
    if wait:
        sys.stdin.read()


def main() -> None:
    """Runs the programs, and compares."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--command", default="cachalot")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    own = [sys.executable, __file__, "--program"]
    run = lambda options, rest: [asked.command, "run", *options, "--", *rest]  # noqa: E731
    output = lambda command: json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)  # noqa: E731
    limit, faults = ["--limit", str(LIMIT)], []
    told = {"limited": output(run(["--nvml", *limit], [*own, str(GIB)])), "plain": output(run(limit, [*own, str(GIB)]))}
    group = ["--nvml", "--group", "nvml", *limit]
    with subprocess.Popen(run(group, [*own, str(2 * GIB), "wait"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        told["group"] = output(run(group, [*own, str(GIB)]))
        other.communicate(b"")
    smi = ["nvidia-smi", "--query-gpu=memory.total,memory.used,memory.free", "--format=csv,noheader,nounits", "--id=0"]
    try:
        told["nvidia-smi"] = subprocess.run(run(["--nvml", *limit], smi), check=True, stdout=subprocess.PIPE, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        told["nvidia-smi"] = str(error)
    for name, least in [("limited", [0, GIB]), ("group", [2 * GIB, 3 * GIB])]:
        for step, used in zip(told[name]["steps"], least):
            said = step["nvml"]
            if said["total"] != LIMIT or said["free"] + said["used"] != LIMIT or not used <= said["used"] < used + 2 * GIB:
                faults.append(f"{name}: {said} instead of {LIMIT} with {used} used or a little more")
            if "second" in said and said["second"] != [said["total"], 0, said["free"], said["used"]]:
                faults.append(f"{name}: the two functions differ: {said}")
            if "driver" in step and step["driver"]["total"] != said["total"]:
                faults.append(f"{name}: NVML and the driver have other totals: {step}")
    if told["plain"]["steps"][0]["nvml"]["total"] <= LIMIT:
        faults.append(f"plain: {told['plain']} without the option")
    (asked.out / "nvml.json").write_text(json.dumps(told, indent=1) + "\n")
    print("\n".join(faults) or "NVML says the limit, and the device without the option")
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--program"]:
        program(int(sys.argv[2]), sys.argv[3:] == ["wait"])
    else:
        main()
