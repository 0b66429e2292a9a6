"""The option `skip_actions` of PyTorch 2.10, as its documentation shows it."""

import torch
from common import dump, new_training, train_step

torch.cuda.memory._record_memory_history(skip_actions=["free_requested"])
model, optimizer = new_training(layers=4)
for _ in range(2):
    train_step(model, optimizer)
dump()
