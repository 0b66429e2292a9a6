"""Trains a model for three steps at a batch size, recorded from the start, and writes its peaks.

models.py MODEL BATCH OUT.pickle OUT.json
"""

import json
import sys

import torch
import torch.nn.functional as F

name, batch, snapshot, figures = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
torch.manual_seed(0)
torch.cuda.memory._record_memory_history(max_entries=1000000)


def vision(make, size=224):
    import torchvision

    model = getattr(torchvision.models, make)(num_classes=1000).cuda()
    return model, lambda: F.cross_entropy(
        model(torch.randn(batch, 3, size, size, device="cuda")), torch.randint(0, 1000, (batch,), device="cuda"))


def language(model, length, vocabulary):
    model = model.cuda()

    def loss():
        tokens = torch.randint(0, vocabulary, (batch, length), device="cuda")
        return model(input_ids=tokens, labels=tokens).loss

    return model, loss


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return language(GPT2LMHeadModel(GPT2Config()), 256, 50257)


def opt():
    from transformers import OPTConfig, OPTForCausalLM

    return language(OPTForCausalLM(OPTConfig(hidden_size=768, ffn_dim=3072, num_attention_heads=12)), 256, 50272)


def qwen():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    small = Qwen2Config(hidden_size=896, intermediate_size=4864, num_hidden_layers=12, num_attention_heads=14,
                        num_key_value_heads=2, vocab_size=65536)
    return language(Qwen2ForCausalLM(small), 256, 65536)


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    return language(T5ForConditionalGeneration(T5Config(decoder_start_token_id=0, pad_token_id=0)), 256, 32128)


def bert():
    from transformers import BertConfig, BertForMaskedLM

    return language(BertForMaskedLM(BertConfig()), 256, 30522)


def distilbert():
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    return language(DistilBertForMaskedLM(DistilBertConfig()), 256, 30522)


models = {
    "resnet50": lambda: vision("resnet50"), "vgg16": lambda: vision("vgg16"), "densenet121": lambda: vision("densenet121"),
    "mobilenet_v3_large": lambda: vision("mobilenet_v3_large"), "convnext_tiny": lambda: vision("convnext_tiny"),
    "vit_b_16": lambda: vision("vit_b_16"), "gpt2": gpt2, "opt": opt, "qwen": qwen, "t5": t5, "bert": bert,
    "distilbert": distilbert,
}
model, loss = models[name]()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4) if name not in ("resnet50", "vgg16", "densenet121") else (
    torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
for _ in range(3):
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
torch.cuda.synchronize()
torch.cuda.memory._dump_snapshot(snapshot)
with open(figures, "w") as file:
    json.dump({"model": name, "batch": batch, "allocated": torch.cuda.max_memory_allocated(),
               "reserved": torch.cuda.max_memory_reserved(), "torch": torch.__version__}, file)
