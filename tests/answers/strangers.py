"""Judges the tools on snapshots that other people have recorded.

    strangers.py CACHALOT FOLDER OUT

FOLDER has a folder for each source, with its snapshots. They are not ours to pass on. What is right
comes from a walk over each file that knows nothing of cachalot: the bytes at the end, and the most
in use. Besides, no line of a report may be a frame of unwinding or of the allocator, and `inspect`,
`compare`, `tune` and `view` must name the same setting with the same saving.
"""

import csv
import json
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path

UNIT = 512
"""The allocator rounds every size up to this."""

PLUMBING = (
    *("torch::unwind", "CapturedTraceback::gather", "gather_with_cpp", "CUDACachingAllocator", "_PyEval_"),
    "site-packages",
)
"""Parts of the names of frames that are about recording, and not about the program, and of the files of
packages, whose names are shown without it."""

CHECKS = ("read", "sums", "peak", "frames", "setting")


class Plain(pickle.Unpickler):
    """A reader of plain values, which runs nothing of a file."""

    def find_class(self, module, name):
        raise ValueError(f"{module}.{name} is no plain value")


def end_of(snapshot, device):
    """Returns the bytes of a device that are reserved, allocated and pending at the end, and the block
    sizes by address."""
    sums, sizes, reserved = {}, {}, 0
    for segment in snapshot["segments"]:
        if segment.get("device", 0) != device:
            continue
        reserved += segment["total_size"]
        address = segment["address"]
        for block in segment["blocks"]:
            state = block["state"].replace("awaiting", "pending")
            sums[state] = sums.get(state, 0) + block["size"]
            if state != "inactive":
                sizes[block.get("address", address)] = block["size"]
            address += block["size"]
    return (reserved, sums.get("active_allocated", 0), sums.get("active_pending_free", 0)), sizes


def most_in_use(trace, sizes):
    """Returns the most bytes in use, from the end backwards."""
    in_use = most = sum(sizes.values())
    for event in reversed(trace):
        address, rounded = event.get("addr"), -(-event["size"] // UNIT) * UNIT
        if event["action"] == "alloc":
            in_use -= sizes.pop(address, rounded)
        elif event["action"] == "free_completed":
            sizes[address] = rounded
            in_use += rounded
        most = max(most, in_use)
    return most


def run(tool, *words):
    """Returns the status and all that a command says."""
    done = subprocess.run([tool, *words], capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


def setting(text):
    """Returns what a first sentence says of settings."""
    found = re.search(r"no setting of PyTorch[^.;]*|`[^`]*` would have saved .*? \([\d.]+ %\)", " ".join(text.split()))
    return found.group(0) if found else ""


def judge(tool, file):
    """Returns the number of events of a file, and the checks that it fails."""
    status, said = run(tool, "inspect", "--json", file)
    if status:
        return 0, {"read"}
    report = json.loads(said.splitlines()[0])
    with open(file, "rb") as stream:
        snapshot = Plain(stream).load()
    failed, events, traces = set(), 0, snapshot.get("device_traces") or []
    fullest = {answer["device"]: answer.get("fullest") for answer in report["answers"]}
    for totals in report["totals"]:
        device = totals["device"]
        trace = traces[device] if device < len(traces) else []
        events += len(trace)
        sums, sizes = end_of(snapshot, device)
        if (totals["reserved"], totals["allocated"], totals["pending"]) != sums:
            failed.add("sums")
        if len(trace) > 1 and fullest[device]["in_use_bytes"] != most_in_use(trace, sizes):
            failed.add("peak")
    groups = [group for peak in report["peaks"] for group in peak["largest"]] + report["largest"]
    if any(word in line for group in groups for line in group["shown"][:1] for word in PLUMBING):
        failed.add("frames")
    if events > 1:
        with tempfile.TemporaryDirectory() as place:
            words = {"inspect": [], "compare": ["--policy=caching"], "tune": ["--trials=1"], "view": [f"-o{place}/page.html"]}
            told = [run(tool, name, *options, file) for name, options in words.items()]
        if any(status for status, _ in told) or len({setting(text) for _, text in told}) > 1:
            failed.add("setting")
    return events, failed


def main(tool, folder, out):
    """Writes a row for each source."""
    rows = [["source", "files", "with a history", "events", *CHECKS]]
    for source in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = sorted(source.glob("*.pickle"))
        judged = [judge(tool, str(file)) for file in files]
        histories = sum(events > 1 for events, _ in judged)
        asked = dict.fromkeys(CHECKS, len(files)) | {"peak": histories, "setting": histories}
        right = [f"{count - sum(check in failed for _, failed in judged)} of {count}" for check, count in asked.items()]
        rows.append([source.name, len(files), histories, f"{sum(events for events, _ in judged):,}", *right])
        print(rows[-1], flush=True)
    with open(out, "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
