"""Expandable segments are on, and lengths change."""

import torch
from common import dump, new_training, train_step

torch.cuda.memory._set_allocator_settings("expandable_segments:True")
torch.cuda.memory._record_memory_history(max_entries=100000)
model, optimizer = new_training(layers=4)
for time in [512, 300, 700, 450]:
    train_step(model, optimizer, time=time)
dump()
