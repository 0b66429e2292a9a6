"""Batches are copied on a side stream, and marked with `record_stream`."""

import torch
from common import dump, new_training
import torch.nn.functional as F

torch.cuda.memory._record_memory_history(max_entries=100000)
model, optimizer = new_training(layers=4)
copies = torch.cuda.Stream()
host = torch.randint(0, 32000, (8, 513)).pin_memory()
for _ in range(4):
    with torch.cuda.stream(copies):
        tokens = host.cuda(non_blocking=True)
        noise = torch.randn(8, 512, 512, device="cuda")
    torch.cuda.current_stream().wait_stream(copies)
    tokens.record_stream(torch.cuda.current_stream())
    noise.record_stream(torch.cuda.current_stream())
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1)) + noise.mean() * 0
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
dump()
