"""`enabled="state"`: stacks of what is allocated, and no history."""

import torch
from common import dump, new_training, train_step

torch.cuda.memory._record_memory_history(enabled="state")
model, optimizer = new_training(layers=4)
for _ in range(2):
    train_step(model, optimizer)
dump()
