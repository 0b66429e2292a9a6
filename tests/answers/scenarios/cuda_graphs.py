"""Inference with a CUDA graph for each batch size, as engines do; then ordinary requests."""

import torch
from common import Decoder, dump

torch.cuda.memory._record_memory_history(max_entries=100000)
model = Decoder(layers=4).cuda().eval().half()
graphs = {}
with torch.no_grad():
    for batch in [16, 8, 4, 2, 1]:
        tokens = torch.zeros(batch, 256, dtype=torch.long, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                model(tokens)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = model(tokens)
        graphs[batch] = (graph, tokens, logits)
    for batch in [16, 4, 1]:
        graph, tokens, logits = graphs[batch]
        tokens.random_(0, 32000)
        graph.replay()
    for time in [700, 300]:
        model(torch.randint(0, 32000, (3, time), device="cuda"))
dump()
