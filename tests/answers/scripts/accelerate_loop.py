"""A training loop with Accelerate."""
import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import resnet18


def main():
    accelerator = Accelerator()
    model = resnet18(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = TensorDataset(torch.rand(256, 3, 224, 224), torch.randint(0, 10, (256,)))
    loader = DataLoader(data, batch_size=64, shuffle=True, pin_memory=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
        accelerator.print(f"loss {loss.item():.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
