"""`stacks="python"`, which many guides advise because it is faster."""

import torch
from common import dump, new_training, train_step

torch.cuda.memory._record_memory_history(stacks="python")
model, optimizer = new_training(layers=4)
for _ in range(2):
    train_step(model, optimizer)
dump()
