"""A small CNN; batches come from worker processes through pinned memory, and a prefetcher on its own stream."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Images(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, i):
        return torch.rand(3, 128, 128), i % 100


class Prefetcher:
    def __init__(self, loader):
        self.loader, self.stream = iter(loader), torch.cuda.Stream()
        self.preload()

    def preload(self):
        try:
            self.next = next(self.loader)
        except StopIteration:
            self.next = None
            return
        with torch.cuda.stream(self.stream):
            self.next = [t.to(device, non_blocking=True) for t in self.next]

    def __iter__(self):
        while self.next is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.next
            for tensor in batch:
                tensor.record_stream(torch.cuda.current_stream())
            self.preload()
            yield batch


net = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(128, 256, 3, padding=1), nn.BatchNorm2d(256), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(256, 100)).to(device)
optimizer = torch.optim.Adam(net.parameters())
loader = DataLoader(Images(), batch_size=64, num_workers=2, pin_memory=True, drop_last=True)
for inputs, labels in Prefetcher(loader):
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(net(inputs), labels)
    loss.backward()
    optimizer.step()
    print(loss.item())
