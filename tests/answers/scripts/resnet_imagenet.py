"""ResNet-50 as the ImageNet examples train it: channels last, AMP with a scaler, a scheduler, a validation."""
import argparse
import time

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torchvision.models as models
from torchvision.datasets import FakeData
from torchvision.transforms import ToTensor

parser = argparse.ArgumentParser()
parser.add_argument("--arch", default="resnet50")
parser.add_argument("-b", "--batch-size", default=32, type=int)
parser.add_argument("--workers", default=2, type=int)


def main():
    args = parser.parse_args()
    cudnn.benchmark = True
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    model = models.__dict__[args.arch]().to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    data = FakeData(size=128, image_size=(3, 224, 224), num_classes=1000, transform=ToTensor())
    loader = torch.utils.data.DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=True)
    scaler = torch.amp.GradScaler()
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(loader):
        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        target = target.to(device, non_blocking=True)
        with torch.autocast("cuda"):
            output = model(images)
            loss = criterion(output, target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        _, predicted = output.topk(5, 1, True, True)
        correct = predicted.t().eq(target.view(1, -1)).float().sum().item()
        print(f"[{i}/{len(loader)}] loss {loss.item():.3f} top5 {correct} time {time.time() - end:.2f}")
        end = time.time()
    scheduler.step()
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            output = model(images.to(device, non_blocking=True))
            criterion(output, target.to(device, non_blocking=True))
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
