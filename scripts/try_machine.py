#!/usr/bin/env python3
"""What cachalot does on this machine, in one file to send back: a minute, for machines that nobody has tried.

    scripts/try_machine.py [--cachalot PATH] [--file-mib N] [-o FILE]

Needs the wheel (`pip install cachalot-gpu`) or the archive, Python 3.9 or later and NVIDIA's driver. It needs no
root, compiles nothing and sends nothing. The file has the machine's processor, kernel and GPU, the answers of the
driver and of cachalot, and no names of users, hosts or folders.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

MIB = 1 << 20
SETTINGS = {
    "segments": ["--config", "expandable_segments:False"],
    "expandable": ["--config", "expandable_segments:True"],
    "stitched": ["--policy", "stitched"],
    "limit": ["--limit", "256MiB"],
}
"""Options of `cachalot run` under which a program checks its bytes."""
TRAINING = """
import torch
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(20):
    inputs = torch.randn(256 + 16 * step, 512, device="cuda")
    loss = (model(inputs) - inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(torch.__version__, loss.item(), torch.cuda.max_memory_reserved() >> 20)
"""
"""A training of twenty steps, whose last loss is printed."""


class Driver:
    """The driver, with the primary context of the first device."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.device = ctypes.c_int()
        context = ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDeviceGet", ctypes.byref(self.device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *arguments: Any) -> None:
        """Calls a function, and fails with its code."""
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: {code}")

    def number(self, name: str, kind: Any, *arguments: Any) -> int:
        """Returns the number that a function writes to its first argument."""
        found = kind()
        self(name, ctypes.byref(found), *arguments)
        return int(found.value)

    def free(self) -> list[int]:
        """Returns the free and the whole memory in MiB."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return [free.value // MIB, total.value // MIB]

    def allocate(self, size: int) -> int:
        """Returns the address of new memory."""
        return self.number("cuMemAlloc_v2", ctypes.c_uint64, ctypes.c_size_t(size))

    def fill(self, at: int, value: int, size: int) -> None:
        """Fills memory, once the work before is done."""
        self("cuMemsetD8Async", ctypes.c_uint64(at), ctypes.c_ubyte(value), ctypes.c_size_t(size), None)

    def check(self, at: int, value: int, size: int) -> None:
        """Fails unless all bytes of memory have a value."""
        found = ctypes.create_string_buffer(size)
        self("cuMemcpyDtoH_v2", found, ctypes.c_uint64(at), ctypes.c_size_t(size))
        if found.raw != bytes([value]) * size:
            raise RuntimeError("the bytes are not those that were written")

    def release(self, at: int) -> None:
        """Frees memory."""
        self("cuMemFree_v2", ctypes.c_uint64(at))


def meminfo() -> dict[str, int]:
    """Returns the system's figures in MiB."""
    text = (Path(os.environ.get("CACHALOT_SYSTEM", "/")) / "proc/meminfo").read_text(encoding="ascii")
    return {name: int(kib) // 1024 for name, kib in re.findall(r"^(Mem\w+|Cached|Swap\w+): +(\d+) kB", text, re.M)}


def about_device() -> dict[str, Any]:
    """Returns what the driver says of the device: its name, and its attributes that are not 0."""
    driver = Driver()
    name = ctypes.create_string_buffer(100)
    driver("cuDeviceGetName", name, 100, driver.device)
    attributes = {}
    for attribute in range(1, 160):
        try:
            value = driver.number("cuDeviceGetAttribute", ctypes.c_int, attribute, driver.device)
        except RuntimeError:
            continue
        if value:
            attributes[attribute] = value
    version = driver.number("cuDriverGetVersion", ctypes.c_int)
    return {"name": name.value.decode(), "driver": version, "attributes": attributes, "integrated": attributes.get(18, 0)}


def about_memory(file_mib: int) -> dict[str, Any]:
    """Returns the driver's free memory beside the system's, before and after a file is written and read."""
    driver = Driver()
    moments = {"before": (driver.free(), meminfo())}
    with tempfile.NamedTemporaryFile(dir=os.environ.get("TMPDIR", "/var/tmp")) as file:
        for _ in range(file_mib):
            file.write(os.urandom(1 << 10) * 1024)
        file.flush()
        file.seek(0)
        while file.read(16 * MIB):
            pass
        moments["after the file"] = (driver.free(), meminfo())
    moments["after its end"] = (driver.free(), meminfo())
    return {moment: {"driver": driver, "system": system} for moment, (driver, system) in moments.items()}


def use_memory(rounds: int) -> str:
    """Allocates, fills, checks and frees blocks in a random order."""
    driver, choice, held, made = Driver(), random.Random(59), [], 0
    for step in range(rounds):
        if held and (len(held) > 12 or choice.random() < 0.4):
            at, size, value = held.pop(choice.randrange(len(held)))
            driver.check(at, value, size)
            driver.release(at)
        else:
            size, value = choice.choice([1 << 9, 3 << 12, MIB, 5 * MIB // 2, 12 * MIB]), step % 256
            at = driver.allocate(size)
            driver.fill(at, value, size)
            held.append((at, size, value))
            made += 1
    for at, size, value in held:
        driver.check(at, value, size)
        driver.release(at)
    return f"{made} blocks, every byte right; free {driver.free()} MiB"


def stay() -> str:
    """Fills memory, leaves it alone until a line is read, and checks it."""
    driver = Driver()
    at = driver.allocate(64 * MIB)
    driver.fill(at, 0x59, 64 * MIB)
    driver.check(at, 0x59, 64 * MIB)
    print("ready", flush=True)
    sys.stdin.readline()
    driver.check(at, 0x59, 64 * MIB)
    return "every byte right"


def output(command: list[str], **variables: str) -> str:
    """Runs a command, and returns what it prints. Fails with its last lines if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **variables}, check=False)
    if done.returncode:
        raise RuntimeError(f"status {done.returncode}: {(done.stdout + done.stderr).strip()[-3000:]}")
    said = [line for line in done.stderr.splitlines() if line.startswith("cachalot: ")]
    return "\n".join([done.stdout.strip(), *said])


def child(*arguments: str) -> list[str]:
    """Returns the command that runs a part of this file in another process."""
    return [sys.executable, __file__, "--part", *arguments]


def park(cachalot: str) -> dict[str, Any]:
    """Parks a running program to memory of the host and to files, and returns what was said."""
    answers = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        for name, options in (("host", ["--parkable"]), ("files", ["--park-to", folder])):
            command = [cachalot, "run", *options, "--name", "platform", "--", *child("stay")]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
                assert program.stdin and program.stdout
                program.stdout.readline()
                begun = time.monotonic()
                done = subprocess.run([cachalot, "park", "platform"], capture_output=True, text=True, timeout=60, check=False)
                seconds = round(time.monotonic() - begun, 3)
                program.stdin.write("\n")
                program.stdin.flush()
                rest = program.stdout.read().strip()
            said = (done.stdout + done.stderr).strip()
            answers[name] = {"status": done.returncode, "said": said, "seconds": seconds, "bytes": rest}
    return answers


def train() -> dict[str, str]:
    """Trains a small model without cachalot and with it."""
    return {name: output([sys.executable, "-c", TRAINING], CACHALOT=on) for name, on in (("PyTorch's", "0"), ("cachalot", "1"))}


def the_command(named: str | None) -> str:
    """Returns the path of the command: the named one, the one on the path, or the package's."""
    if found := named or shutil.which("cachalot"):
        return found
    from cachalot_gpu._files import command_path

    return str(command_path())


def main() -> int:
    """Runs all parts, prints a line for each, and writes the file. Returns 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cachalot", help="the command, if it is not on the path")
    parser.add_argument("--file-mib", type=int, default=1024, help="the size of the file that is read")
    parser.add_argument("-o", "--output", default="machine.json", help="the file to write")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        name, *rest = asked.part
        parts: dict[str, Callable[..., Any]] = {"use": use_memory, "stay": stay, "device": about_device, "memory": about_memory}
        said = parts[name](*map(int, rest))
        print(said if isinstance(said, str) else json.dumps(said))
        return 0
    cachalot = the_command(asked.cachalot)
    machine = {"processor": platform.machine(), "kernel": platform.release(), "page": os.sysconf("SC_PAGE_SIZE")}
    report: dict[str, Any] = {"machine": machine, "meminfo": meminfo(), "parts": {}}

    def run(name: str, part: Callable[[], Any]) -> None:
        begun = time.monotonic()
        try:
            found = {"said": part()}
        except Exception as error:  # noqa: BLE001 what fails is the finding
            found = {"failed": str(error)}
        found["seconds"] = round(time.monotonic() - begun, 2)
        report["parts"][name] = found
        print(f"{name:<22}{'failed: ' + found['failed'].splitlines()[-1] if 'failed' in found else 'done'}", flush=True)

    # Each in its own process: none sees the driver of another, and one that dies is a finding.
    run("version", lambda: output([cachalot, "--version"]))
    run("device", lambda: json.loads(output(child("device"))))
    run("memory", lambda: json.loads(output(child("memory", str(asked.file_mib)))))
    run("alone", lambda: output(child("use", "300")))
    for name, options in SETTINGS.items():
        run(f"run, {name}", lambda options=options: output([cachalot, "run", *options, "--", *child("use", "300")]))
    run("park", lambda: park(cachalot))
    run("top", lambda: output([cachalot, "top", "--once"]))
    if subprocess.run([sys.executable, "-c", "import cachalot_gpu"], capture_output=True, check=False).returncode == 0:
        run("doctor", lambda: output([sys.executable, "-m", "cachalot_gpu", "doctor"]))
        if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
            run("training", train)
    text = json.dumps(report, indent=1, ensure_ascii=False)
    for private in (str(Path.home()), sys.prefix, os.getcwd(), str(Path(__file__).resolve().parent.parent)):
        text = text.replace(private, "…") if len(private) > 1 else text
    Path(asked.output).write_text(text + "\n", encoding="utf-8")
    print(f"the answers are in {asked.output}")
    return int(any("failed" in part for part in report["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
