"""Runs a script on a GPU, and writes its peaks: measure.py OUT.json SCRIPT"""

import json
import runpy
import sys

import torch

out, script = sys.argv[1:3]
# A script may reset the peaks: the highest of each part counts.
highest = {"allocated": 0, "reserved": 0}


def note():
    highest["allocated"] = max(highest["allocated"], torch.cuda.max_memory_allocated())
    highest["reserved"] = max(highest["reserved"], torch.cuda.max_memory_reserved())


reset = torch.cuda.reset_peak_memory_stats
torch.cuda.reset_peak_memory_stats = lambda *which: (note(), reset(*which))[1]
sys.argv = [script]
failed = None
try:
    runpy.run_path(script, run_name="__main__")
except SystemExit as end:
    failed = None if end.code in (None, 0) else str(end.code)
note()
with open(out, "w") as file:
    json.dump({"script": script, "failed": failed, "torch": torch.__version__, **highest}, file)
