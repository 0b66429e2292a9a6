"""The ring is full: only the last 3,000 events are there."""

import torch
from common import dump, new_training, train_step

torch.cuda.memory._record_memory_history(max_entries=3000)
model, optimizer = new_training()
for time in [512, 300, 700, 512, 400]:
    train_step(model, optimizer, time=time)
dump()
