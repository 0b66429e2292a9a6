"""Generation with a cache of keys and values that grows by concatenation."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from common import dump

torch.cuda.memory._record_memory_history()
model = GPT2LMHeadModel(GPT2Config(n_layer=6)).cuda().eval().half()
for batch, prompt in [(8, 200), (3, 500), (12, 64)]:
    tokens = torch.randint(0, 50000, (batch, prompt), device="cuda")
    model.generate(tokens, max_new_tokens=40, do_sample=False, pad_token_id=0, attention_mask=torch.ones_like(tokens))
dump()
