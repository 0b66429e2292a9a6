"""Out of memory because another process holds the rest of the card."""

import subprocess
import sys
import time

import torch
from common import dump, new_training, train_step

holder = """
import torch, sys
free, total = torch.cuda.mem_get_info()
kept = torch.empty(free - (5 << 30), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""
other = subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert other.stdout.readline().strip() == "held"
torch.cuda.memory._record_memory_history()
model, optimizer = new_training()
try:
    for batch in [4, 8, 12, 16, 24, 32]:
        train_step(model, optimizer, batch=batch)
except torch.cuda.OutOfMemoryError as error:
    print(str(error).splitlines()[0])
    dump()
else:
    raise SystemExit("no request failed")
finally:
    other.communicate("")
