"""Out of memory although enough is free: lengths change, and the free memory is in pieces."""

import random

import torch
from common import dump, new_training, train_step

torch.cuda.memory._record_memory_history(max_entries=100000)
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(7 * 2**30 / total)
model, optimizer = new_training(layers=4)
random.seed(1)
kept = []
try:
    for step in range(400):
        time = random.choice([120, 250, 333, 410, 512, 600, 700, 777, 850, 930, 1024])
        train_step(model, optimizer, batch=6, time=time)
        if step % 3 == 0:
            kept.append(torch.empty(random.randint(3, 20) << 20, dtype=torch.uint8, device="cuda"))
        if len(kept) > 60:
            del kept[random.randrange(len(kept))]
except torch.cuda.OutOfMemoryError as error:
    print(str(error).splitlines()[0])
dump()
