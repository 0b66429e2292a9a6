"""Recording is on before the model is made; three steps; the defaults of PyTorch."""

import torch
from common import dump, new_training, train_step

torch.cuda.memory._record_memory_history()
model, optimizer = new_training()
for _ in range(3):
    train_step(model, optimizer)
dump()
