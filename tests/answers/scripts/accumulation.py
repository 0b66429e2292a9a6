"""Gradient accumulation with gradient checkpointing on a GPT-2 of transformers."""
import torch
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = GPT2LMHeadModel(GPT2Config(n_layer=6))
model.gradient_checkpointing_enable()
model.to(device)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
scheduler = get_linear_schedule_with_warmup(optimizer, 2, 20)
accumulation_steps = 4
running = 0.0
for step in range(12):
    tokens = torch.randint(0, 50257, (2, 512)).to(device)
    outputs = model(tokens, labels=tokens)
    loss = outputs.loss / accumulation_steps
    loss.backward()
    running += loss.item()
    if (step + 1) % accumulation_steps == 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        print(f"step {step + 1} loss {running:.3f} mem {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
        running = 0.0
        torch.cuda.empty_cache()
