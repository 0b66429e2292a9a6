"""Predictions of reserved memory beside measurements, for 36 training programs.

    python3 predict.py OUT                predicts, and measures if there is a GPU
    python3 predict.py --predict NAME     predicts one program: an object on the standard output
    python3 predict.py --measure NAME     trains one program on the GPU: an object as well

The predictions need no GPU. Each program runs in a process of its own, with PyTorch's own allocator and
its default settings. Models are built from configurations, with random weights. `cachalot_gpu` must be
importable; `CACHALOT_COMMAND` names the command if the package is not installed.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import tables

PREDICTED_AT_ONCE, MEASURED_AT_ONCE = 9, 6
"""Programs predicted and measured at one time, for 16 cores and 80 GB. The peaks are those of a process, so they do
not disturb each other."""

STEPS = 3
"""Steps of each program: the second has the optimizer's state, and the third repeats the second."""


def transformer(kind, batch, length, optimizer, precision, attention="eager", **config):
    """Returns a program that trains a language model of transformers."""
    return ("transformer", kind, batch, length, optimizer, precision, attention, config)


def picture(kind, batch, size, optimizer, precision, **config):
    """Returns a program that trains a model of pictures."""
    return ("picture", kind, batch, size, optimizer, precision, None, config)


def vector(kind, batch, size, optimizer, precision, **config):
    """Returns a program that trains a model of vectors or sequences of vectors."""
    return ("vector", kind, batch, size, optimizer, precision, None, config)


SMALL = {"hidden_size": 768, "num_hidden_layers": 8, "num_attention_heads": 12, "intermediate_size": 2048}

PROGRAMS = {
    "gpt2_b4_adamw": transformer("GPT2", 4, 512, "adamw", "fp32"),
    "gpt2_b8_adamw_amp": transformer("GPT2", 8, 512, "adamw", "amp"),
    "gpt2_b16_sgd": transformer("GPT2", 16, 256, "sgd", "fp32"),
    "gpt2_b8_sdpa": transformer("GPT2", 8, 512, "adamw", "bf16", "sdpa"),
    "gpt2_medium_b4": transformer("GPT2", 4, 512, "adamw", "amp", n_layer=24, n_embd=1024, n_head=16),
    "bert_b8_adamw": transformer("Bert", 8, 384, "adamw", "fp32"),
    "bert_b32_adamw": transformer("Bert", 32, 128, "adamw", "fp32"),
    "bert_b16_amp": transformer("Bert", 16, 384, "adamw", "amp"),
    "bert_b16_momentum": transformer("Bert", 16, 256, "momentum", "fp32"),
    "distilbert_b16": transformer("DistilBert", 16, 256, "adam", "fp32"),
    "roberta_b8_amp": transformer("Roberta", 8, 384, "adamw", "amp"),
    "electra_b16": transformer("Electra", 16, 256, "adamw", "fp32", hidden_size=512, num_attention_heads=8),
    "llama_b2_adamw": transformer("Llama", 2, 1024, "adamw", "bf16", **SMALL),
    "llama_b8_adamw": transformer("Llama", 8, 512, "adamw", "bf16", **SMALL),
    "llama_b4_fp32": transformer("Llama", 4, 512, "adamw", "fp32", **SMALL),
    "llama_b4_sdpa": transformer("Llama", 4, 1024, "adamw", "bf16", "sdpa", **SMALL),
    "llama_gqa_b4": transformer("Llama", 4, 512, "sgd", "bf16", num_key_value_heads=4, **SMALL),
    "mistral_b4": transformer("Mistral", 4, 512, "adamw", "bf16", num_key_value_heads=4, **SMALL),
    "qwen2_b4": transformer("Qwen2", 4, 512, "adamw", "bf16", num_key_value_heads=4, **SMALL),
    "opt_b8": transformer("OPT", 8, 512, "adamw", "fp32"),
    "neox_b4": transformer("GPTNeoX", 4, 512, "adam", "bf16", **SMALL),
    "bloom_b4": transformer("Bloom", 4, 512, "adamw", "fp32", hidden_size=768, n_layer=8, n_head=12),
    "t5_b8": transformer("T5", 8, 256, "adamw", "fp32"),
    "vit_b32_adamw": picture("ViT", 32, 224, "adamw", "fp32"),
    "vit_b64_amp": picture("ViT", 64, 224, "adamw", "amp"),
    "vit_b16_momentum": picture("ViT", 16, 224, "momentum", "fp32"),
    "mixer_b64": picture("Mixer", 64, 224, "adamw", "fp32"),
    "mixer_b128_amp": picture("Mixer", 128, 224, "adamw", "amp"),
    "resnet50_b32": picture("ResNet", 32, 224, "momentum", "fp32"),
    "resnet50_b64_amp": picture("ResNet", 64, 224, "momentum", "amp"),
    "unet_b8": picture("UNet", 8, 128, "adamw", "fp32"),
    "mlp_b1024": vector("MLP", 1024, 2048, "adamw", "fp32"),
    "mlp_b8192": vector("MLP", 8192, 2048, "sgd", "fp32"),
    "mlp_b4096_rmsprop": vector("MLP", 4096, 1024, "rmsprop", "fp32"),
    "encoder_b16": vector("Encoder", 16, 512, "adamw", "fp32"),
    "encoder_b32_adagrad": vector("Encoder", 32, 512, "adagrad", "fp32"),
}
"""The programs by name."""


def language_model(kind, attention, config):
    """Builds a language model of transformers from its configuration."""
    import transformers

    head = {"GPT2": "LMHeadModel", "Bert": "ForMaskedLM", "DistilBert": "ForMaskedLM", "Roberta": "ForMaskedLM",
            "Electra": "ForMaskedLM", "T5": "ForConditionalGeneration"}.get(kind, "ForCausalLM")
    made = getattr(transformers, f"{kind}Config")(**config)
    made.use_cache = False
    made.decoder_start_token_id = 0
    made._attn_implementation = attention
    return getattr(transformers, kind + head)(made), made.vocab_size


def picture_model(kind):
    """Builds a model of pictures. ResNet-50 and ViT are those of transformers."""
    import torch
    from torch import nn

    if kind == "ViT":
        from transformers import ViTConfig, ViTForImageClassification

        return ViTForImageClassification(ViTConfig(num_labels=1000, attn_implementation="eager"))
    if kind == "ResNet":
        from transformers import ResNetConfig, ResNetForImageClassification

        return ResNetForImageClassification(ResNetConfig(num_labels=1000))

    class Mixing(nn.Module):
        """Mixes the patches of a picture, then the channels."""

        def __init__(self, patches, width):
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.patches = nn.Sequential(nn.Linear(patches, 384), nn.GELU(), nn.Linear(384, patches))
            self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            x = x + self.patches(self.first(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.second(x))

    class Mixer(nn.Module):
        """A classifier without convolutions: patches are cut by a view."""

        def __init__(self, width=512, depth=8):
            super().__init__()
            self.inward, self.outward = nn.Linear(768, width), nn.Linear(width, 1000)
            self.layers = nn.Sequential(*(Mixing(196, width) for _ in range(depth)))

        def forward(self, x):
            patches = x.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 1, 4, 5).reshape(x.shape[0], 196, 768)
            return self.outward(self.layers(self.inward(patches)).mean(1))

    class UNet(nn.Module):
        """Convolutions down, and up again beside the pictures on the way down."""

        def __init__(self, width=64):
            super().__init__()
            block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(8, o), nn.SiLU())
            sizes = [width, 2 * width, 4 * width]
            self.down = nn.ModuleList(block(i, o) for i, o in zip([3, *sizes], sizes))
            self.up = nn.ModuleList(block(3 * o, o) for o in sizes[:2])
            self.last = nn.Linear(width, 1000)

        def forward(self, x):
            kept = []
            for layer in self.down:
                x = layer(x)
                kept.append(x)
                x = nn.functional.avg_pool2d(x, 2) if layer is not self.down[-1] else x
            for layer, beside in zip(reversed(self.up), reversed(kept[:2])):
                x = layer(torch.cat([nn.functional.interpolate(x, scale_factor=2), beside], 1))
            return self.last(x.mean((2, 3)))

    return Mixer() if kind == "Mixer" else UNet()


def vector_model(kind, size):
    """Builds a model of vectors, or of sequences of 128 vectors."""
    from torch import nn

    if kind == "MLP":
        layers = [layer for _ in range(4) for layer in (nn.Linear(size, size), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(size, 1000))

    class Encoder(nn.Module):
        """Layers of attention that are written out."""

        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(size, 8, 4 * size, dropout=0.1, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
            self.last = nn.Linear(size, 1000)

        def forward(self, x):
            with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
                return self.last(self.layers(x).mean(1))

    return Encoder()


def optimizer_of(name, parameters):
    """Returns the optimizer of a name."""
    import torch

    made = {
        "sgd": lambda: torch.optim.SGD(parameters, lr=0.01),
        "momentum": lambda: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        "adam": lambda: torch.optim.Adam(parameters),
        "adamw": lambda: torch.optim.AdamW(parameters),
        "rmsprop": lambda: torch.optim.RMSprop(parameters),
        "adagrad": lambda: torch.optim.Adagrad(parameters),
    }
    return made[name]()


def train(program):
    """Trains some steps on the device `cuda`."""
    import torch
    from torch.nn.functional import cross_entropy

    what, kind, batch, size, optimizer, precision, attention, config = program
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    if what == "transformer":
        model, words = language_model(kind, attention, config)
    else:
        model = picture_model(kind) if what == "picture" else vector_model(kind, size)
    model = model.to(dtype).to("cuda")
    model.train()
    optimizer = optimizer_of(optimizer, model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        if what == "transformer":
            tokens = torch.randint(0, words, (batch, size), device="cuda")
        else:
            shape = {"picture": (batch, 3, size, size), "Encoder": (batch, 128, size)}
            data = torch.randn(shape.get(what) or shape.get(kind) or (batch, size), device="cuda", dtype=dtype)
            labels = torch.randint(0, 1000, (batch,), device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "amp"):
            if what == "transformer":
                loss = model(input_ids=tokens, labels=tokens).loss
            else:
                outcome = model(data)
                loss = cross_entropy(getattr(outcome, "logits", outcome), labels)
        loss.backward()
        optimizer.step()


def predict(name):
    """Predicts a program, and returns the figures."""
    import cachalot_gpu.predict as prediction
    import torch
    from cachalot_gpu import _cudnn

    begin = time.time()
    recorder = prediction.record(lambda: train(PROGRAMS[name]))
    [caching] = prediction.replay(recorder, policies=("caching",))
    return {
        "reserved": caching.peak_reserved_bytes,
        "allocated": caching.peak_allocated_bytes,
        "requests": sum(1 for kind, *_ in recorder.events if kind == "a"),
        "seconds": time.time() - begin,
        "torch": torch.__version__,
        "cudnn": _cudnn.named(library.version) if (library := _cudnn.installed()) else "none",
    }


def measure(name):
    """Trains a program on the GPU, and returns PyTorch's peaks."""
    import torch

    train(PROGRAMS[name])
    torch.cuda.synchronize()
    return {
        "reserved": torch.cuda.max_memory_reserved(),
        "allocated": torch.cuda.max_memory_allocated(),
        "requests": torch.cuda.memory_stats()["allocation.all.allocated"],
        "gpu": torch.cuda.get_device_name(),
    }


def child(action, name):
    """Runs this script for one program, and returns what it prints."""
    # A model is made on the CPU by few threads, because the programs share the cores.
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": "", "OMP_NUM_THREADS": "2"}
    command = [sys.executable, str(Path(__file__).resolve()), action, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def has_gpu():
    """Returns whether there is a GPU, without a use of CUDA in this process."""
    code = "import torch; print(torch.cuda.is_available())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() == "True"


def difference(predicted, measured):
    """Returns the error of a prediction as a part of the measurement."""
    return (predicted - measured) / measured


def mebibytes(size):
    """Formats bytes."""
    return f"{size / 2**20:.0f}"


def table(rows):
    """Returns the table, and prints the errors in short."""
    errors = [difference(p["reserved"], m["reserved"]) for _, p, m in rows if "reserved" in p and m and "reserved" in m]
    if errors:
        sizes = sorted(abs(error) for error in errors)
        print(f"The error of the peak of reserved memory over {len(sizes)} programs: median "
              f"{statistics.median(sizes) * 100:.2f} %, worst {sizes[-1] * 100:.2f} %.")
    found = [["program", "requests", "predicted reserved, MiB", "measured reserved, MiB", "error, %", "predicted allocated, MiB",
              "measured allocated, MiB", "error of allocated, %", "seconds"]]
    for name, predicted, measured in rows:
        if "error" in predicted or (measured and "error" in measured):
            complaint = predicted.get("error") or measured["error"]
            found.append([name, f"failed: {complaint}", *[""] * 7])
            continue
        cells = [name, predicted["requests"], mebibytes(predicted["reserved"])]
        if measured:
            allocated = difference(predicted["allocated"], measured["allocated"])
            reserved = difference(predicted["reserved"], measured["reserved"])
            cells += [mebibytes(measured["reserved"]), f"{reserved * 100:+.2f}", mebibytes(predicted["allocated"]),
                      mebibytes(measured["allocated"]), f"{allocated * 100:+.2f}"]
        else:
            cells += ["", "", mebibytes(predicted["allocated"]), "", ""]
        found.append([*cells, f"{predicted['seconds']:.1f}"])
    return found


def main(out, names):
    """Predicts and measures all programs, some at a time, and writes the tables after each."""
    begin, rows = time.time(), {name: [None, None] for name in names}
    pools = [concurrent.futures.ThreadPoolExecutor(PREDICTED_AT_ONCE)]
    pools += [concurrent.futures.ThreadPoolExecutor(MEASURED_AT_ONCE)] if has_gpu() else []
    tasks = {}
    for column, (pool, action) in enumerate(zip(pools, ("--predict", "--measure"))):
        tasks |= {pool.submit(child, action, name): (name, column) for name in names}
    for done in concurrent.futures.as_completed(tasks):
        name, column = tasks[done]
        rows[name][column] = done.result()
        if None not in rows[name][: len(pools)]:
            print(f"{time.time() - begin:.0f} s", name, *rows[name], flush=True)
            write(out, [(name, *row) for name, row in rows.items() if None not in row[: len(pools)]])
    return int(any("error" in part for row in rows.values() for part in row if part))


def write(out, rows):
    """Writes the tables with what is known so far."""
    first = next((row[1] for row in rows if "torch" in row[1]), {})
    machine = next((row[2]["gpu"] for row in rows if row[2] and "gpu" in row[2]), "no GPU: predictions only")
    head = [("what", "is"), ("machine", machine), ("PyTorch", first.get("torch")), ("cuDNN", first.get("cudnn"))]
    head += [("date", time.strftime("%Y-%m-%d")), ("commit", os.environ.get("CACHALOT_COMMIT", "unknown"))]
    head += [("command", "`python3 tests/pytorch/predict.py OUT`")]
    tables.write(Path(out) / "head.csv", head)
    tables.write(Path(out) / "programs.csv", table(rows))


if __name__ == "__main__":
    if sys.argv[1] == "--predict":
        print(json.dumps(predict(sys.argv[2])), flush=True)
        # The threads of the autograd engine can abort an orderly exit on a machine without a GPU.
        os._exit(0)
    elif sys.argv[1] == "--measure":
        print(json.dumps(measure(sys.argv[2])))
    else:
        sys.exit(main(sys.argv[1], sys.argv[2:] or list(PROGRAMS)))
