"""One step of a training that has already run some."""

import torch
from common import dump, new_training, train_step

model, optimizer = new_training()
for _ in range(3):
    train_step(model, optimizer)
torch.cuda.memory._record_memory_history(max_entries=100000)
train_step(model, optimizer)
dump()
torch.cuda.memory._record_memory_history(enabled=None)
