"""Sharded training as FSDP does it: a layer's parameters are gathered into a flat buffer, used, and freed."""

import torch
import torch.nn.functional as F
from common import dump

SHARDS = 8
shapes = [(1024, 4096), (4096, 1024)] * 6


def pad(count):
    return (count + SHARDS - 1) // SHARDS


class FlatParameter:
    def __init__(self, shape):
        self.shape, self.count = shape, shape[0] * shape[1]
        self.shard = torch.randn(pad(self.count), device="cuda") * 0.02
        self.moments = torch.zeros(2, pad(self.count), device="cuda")

    def gather(self):
        full = torch.empty(pad(self.count) * SHARDS, device="cuda")
        full[: self.shard.numel()].copy_(self.shard)
        return full[: self.count].view(self.shape)

    def reduce_scatter(self, gradient):
        flat = torch.zeros(pad(self.count) * SHARDS, device="cuda")
        flat[: self.count].copy_(gradient.reshape(-1))
        return flat.view(SHARDS, -1).sum(0)


def step(parameters):
    x = torch.randn(2048, 1024, device="cuda")
    inputs = []
    for parameter in parameters:
        weight = parameter.gather()
        inputs.append(x)
        x = F.relu(x @ weight)
        del weight
    gradient = torch.ones_like(x)
    for parameter, x in zip(reversed(parameters), reversed(inputs)):
        weight = parameter.gather()
        local = parameter.reduce_scatter(x.t() @ gradient)
        gradient = gradient @ weight.t()
        parameter.moments[0].lerp_(local, 0.1)
        parameter.shard.sub_(parameter.moments[0], alpha=1e-3)
        del weight, local


torch.cuda.memory._record_memory_history()
parameters = [FlatParameter(shape) for shape in shapes]
for _ in range(3):
    step(parameters)
dump()
