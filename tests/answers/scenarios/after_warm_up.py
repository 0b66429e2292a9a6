"""Recording is switched on after a warm-up of changing lengths, whose cache stays idle."""

import torch
from common import dump, new_training, train_step

model, optimizer = new_training()
for time in [1024, 768, 896, 640, 1000]:
    train_step(model, optimizer, batch=16, time=time)
torch.cuda.memory._record_memory_history(max_entries=100000)
for _ in range(2):
    train_step(model, optimizer, batch=4, time=256)
dump()
