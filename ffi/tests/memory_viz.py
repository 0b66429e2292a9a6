"""Looks at snapshots with torch's _memory_viz.py, and holds what it says against what the program that wrote them knows.

    python3 memory_viz.py FOLDER-OF-MEMORY_VIZ FOLDER

FOLDER has NAME.pickle, NAME.json and NAME.expected.json of each snapshot.
"""

import base64
import importlib.util
import json
import pickle
import pickletools
import re
import sys
from collections import Counter
from pathlib import Path

# Those that the viewer's page reads; protocol 2 has no others that are needed.
OPCODES = {
    "PROTO", "EMPTY_DICT", "EMPTY_LIST", "MARK", "SETITEMS", "APPENDS", "BINUNICODE", "BININT", "BININT1", "BININT2",
    "LONG1", "NEWTRUE", "NEWFALSE", "NONE", "BINFLOAT", "TUPLE2", "LONG_BINPUT", "LONG_BINGET", "STOP",
}  # fmt: skip
STATES = {"active_allocated", "active_pending_free", "inactive"}
SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF", "max_split_size", "garbage_collection_threshold", "expandable_segments",
    "pinned_num_register_threads", "release_lock_on_cudamalloc", "pinned_use_cuda_host_register",
    "graph_capture_record_stream_reuse", "max_round_threshold", "max_cached_size", "roundup_power2_divisions",
    "trace_alloc_max_entries", "trace_alloc_overflowed",
}  # fmt: skip


def load(path):
    """torch's own script, as a module."""
    spec = importlib.util.spec_from_file_location("memory_viz", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_json(value):
    """A value as JSON has it: with lists in the place of tuples."""
    return json.loads(json.dumps(value))


def check_form(snapshot):
    """What every reader relies on."""
    assert set(snapshot["allocator_settings"]) == SETTINGS, snapshot["allocator_settings"].keys()
    divisions = snapshot["allocator_settings"]["roundup_power2_divisions"]
    assert set(divisions) == {str(1 << at) for at in range(16)}, divisions
    addresses = [segment["address"] for segment in snapshot["segments"]]
    assert addresses == sorted(addresses)
    for segment in snapshot["segments"]:
        assert 0 <= segment["device"] < len(snapshot["device_traces"])
        assert isinstance(segment["segment_pool_id"], tuple) and len(segment["segment_pool_id"]) == 2
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at and block["state"] in STATES
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
        active = [block for block in segment["blocks"] if block["state"] != "inactive"]
        assert segment["active_size"] == sum(block["size"] for block in active)
        assert segment["requested_size"] == sum(block["requested_size"] for block in active)


def check_history(segments, trace):
    """Undoes every event, as the page does to show the memory at a time, and refuses what it would stumble over."""
    parts = {segment["address"]: segment["address"] + segment["total_size"] for segment in segments}
    blocks = {}
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                blocks[block["address"]] = block["state"]

    def inside(start, end):
        holders = [at for at, until in parts.items() if at <= start and end <= until]
        assert len(holders) == 1, f"{start:#x} is in {len(holders)} segments"
        return holders[0]

    for event in reversed(trace):
        start, end = event.get("addr", 0), event.get("addr", 0) + event["size"]
        match event["action"]:
            case "alloc":
                assert blocks.pop(start, None) == "active_allocated", event
                inside(start, end)
            case "free_requested":
                assert blocks.get(start) == "active_pending_free", event
                blocks[start] = "active_allocated"
            case "free_completed":
                assert start not in blocks, event
                inside(start, end)
                blocks[start] = "active_pending_free"
            case "segment_alloc" | "segment_map":
                at = inside(start, end)
                until = parts.pop(at)
                assert not any(start <= block < end for block in blocks), event
                if at < start:
                    parts[at] = start
                if end < until:
                    parts[end] = until
            case "segment_free" | "segment_unmap":
                assert not any(at < end and start < until for at, until in parts.items()), event
                # The page joins what it maps to what is next to it.
                before = [at for at, until in parts.items() if until == start and event["action"] == "segment_unmap"]
                until = parts.pop(end, end) if event["action"] == "segment_unmap" else end
                parts[before[0] if before else start] = until
            case "oom":
                assert event["device_free"] >= 0
            case other:
                raise AssertionError(other)


def check_totals(viz, snapshot, expected):
    """The summary that `_memory_viz.py stats` prints."""
    printed = viz.segsum(snapshot)
    size = lambda bytes: str(viz.Bytes(bytes))
    for line in [
        f"segments: {expected['segments'] or len(snapshot['segments'])}\n",
        f"total_reserved: {size(expected['reserved'])}\n",
        f"total_allocated: {size(expected['requested'])}\n",
        f"total_free: {viz._report_free(expected['reserved'] - expected['allocated'], expected['allocated'] - expected['requested'])}\n",
    ]:
        assert line in printed, (line, printed[-800:])


def check_trace(viz, snapshot, expected):
    """The program that `_memory_viz.py trace` prints."""
    printed = viz.trace(snapshot)
    if expected["complete"]:
        lines = {
            "allocs": r"^\S+ = \S+\[\d+:",
            "frees": r"^del ",
            "completions": r"^# free completed",
            "segment_allocs": r"^\S+ = cudaMalloc\(",
            "segment_frees": r"^cudaFree\(",
            "ooms": r"^raise OutOfMemoryError",
            "maps": r"^\{'action': 'segment_map'",
            "unmaps": r"^\{'action': 'segment_unmap'",
        }
        found = {name: len(re.findall(line, printed, re.MULTILINE)) for name, line in lines.items()}
        assert found == expected["events"], (found, expected["events"])
    entries = [f"{len(trace)} entries\n" for trace in snapshot["device_traces"] if trace]
    assert entries and all(line in printed for line in entries)


def check_plot(html, snapshot):
    """A page has the snapshot in it."""
    texts = re.findall(r'"base64": "([^"]+)"', html)
    assert texts, html[:500]
    assert any(pickle.loads(base64.b64decode(text))["segments"] == snapshot["segments"] for text in texts)


def check(viz, folder, name):
    pickled = (folder / f"{name}.pickle").read_bytes()
    used = Counter(operation.name for operation, _, _ in pickletools.genops(pickled))
    assert set(used) <= OPCODES, set(used) - OPCODES
    snapshot = pickle.loads(pickled)
    assert as_json(snapshot) == json.loads((folder / f"{name}.json").read_text())
    expected = json.loads((folder / f"{name}.expected.json").read_text())
    check_form(snapshot)
    for device, trace in enumerate(snapshot["device_traces"]):
        assert len(trace) == expected["entries"][device], (len(trace), expected["entries"])
        check_history([segment for segment in snapshot["segments"] if segment["device"] == device], trace)
    check_totals(viz, snapshot, expected)
    check_trace(viz, snapshot, expected)
    for device in (None, 0):
        check_plot(viz.trace_plot(snapshot, device=device), snapshot)
        check_plot(viz.segment_plot(snapshot, device=device), snapshot)
    if expected["stack"]:
        assert used["LONG_BINGET"] > used["LONG_BINPUT"] > 0
        held = [block for segment in snapshot["segments"] for block in segment["blocks"] if block["state"] != "inactive"]
        assert held and all(block["frames"][0]["name"] in expected["stack"] for block in held), held[0]
        assert all(event["frames"] for trace in snapshot["device_traces"] for event in trace)
        assert all(segment["frames"] for segment in snapshot["segments"])
        assert "module.py" in viz.memory(snapshot, format_flamegraph=lambda lines: lines)


def main(viz, folder):
    viz, folder = load(Path(viz, "_memory_viz.py")), Path(folder)
    names = sorted(path.name.removesuffix(".pickle") for path in folder.glob("*.pickle"))
    assert names
    for name in names:
        try:
            check(viz, folder, name)
        except Exception as error:
            raise AssertionError(name) from error
    print(len(names))


main(*sys.argv[1:])
