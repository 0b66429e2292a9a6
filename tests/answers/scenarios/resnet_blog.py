"""The example of PyTorch's page "Understanding GPU memory": ResNet-50, five steps, a snapshot and the profiler."""

import os

import torch
from torchvision import models

from common import OUT, dump

torch.cuda.memory._record_memory_history(max_entries=100000)
model = models.resnet50().cuda()
inputs = torch.randn(32, 3, 224, 224, device="cuda")
labels = torch.rand_like(model(inputs))
loss_of = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(5):
    prediction = model(inputs)
    loss_of(prediction, labels).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
dump()
torch.cuda.memory._record_memory_history(enabled=None)

from torch.profiler import ProfilerActivity, profile, record_function, schedule

folder = os.path.splitext(OUT)[0]


def written(done):
    done.export_chrome_trace(f"{folder}.kineto.json.gz")
    for kind in ["html", "json", "raw.json.gz"]:
        try:
            done.export_memory_timeline(f"{folder}.timeline.{kind}", device="cuda:0")
        except Exception as error:
            print("no timeline", kind, error)


with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], schedule=schedule(wait=0, warmup=0, active=2, repeat=1),
    record_shapes=True, profile_memory=True, with_stack=True, on_trace_ready=written,
) as running:
    for _ in range(2):
        running.step()
        with record_function("## forward ##"):
            prediction = model(inputs[:4])
        with record_function("## backward ##"):
            loss_of(prediction, labels[:4]).backward()
        with record_function("## optimizer ##"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

from torch.cuda._memory_viz import profile_plot, segment_plot, trace_plot

snapshot = torch.cuda.memory._snapshot()
with open(f"{folder}.trace_plot.html", "w") as page:
    page.write(trace_plot(snapshot))
with open(f"{folder}.segment_plot.html", "w") as page:
    page.write(segment_plot(snapshot))
