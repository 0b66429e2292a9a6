"""A recording with ranges of the profiler, as annotations."""

import torch
from common import dump, new_training, train_step

torch.cuda.memory._record_memory_history(max_entries=100000)
model, optimizer = new_training(layers=4)
for step in range(3):
    with torch.profiler.record_function(f"step {step}"):
        train_step(model, optimizer)
dump()
