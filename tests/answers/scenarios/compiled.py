"""`torch.compile`: the compilation is in the recording."""

import torch
from common import dump, new_training, train_step

torch.cuda.memory._record_memory_history(max_entries=100000)
model, optimizer = new_training(layers=4)
model = torch.compile(model)
for _ in range(3):
    train_step(model, optimizer)
dump()
