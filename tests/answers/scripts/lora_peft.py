"""LoRA on a Llama-shaped model with PEFT."""
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, vocab_size=32000)
model = LlamaForCausalLM(config).to(torch.bfloat16)
model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
model.print_trainable_parameters()
model.to(device)
optimizer = torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-4)
model.train()
for step in range(4):
    tokens = torch.randint(0, 32000, (4, 512)).to(device)
    out = model(input_ids=tokens, labels=tokens)
    out.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, out.loss.item())
