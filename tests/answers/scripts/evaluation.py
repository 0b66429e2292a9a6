"""Evaluation of a classifier, without gradients, that collects its logits."""
import torch
import torchvision
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torchvision.models.convnext_tiny(num_classes=1000).to(device).eval()
data = TensorDataset(torch.rand(256, 3, 224, 224), torch.randint(0, 1000, (256,)))
loader = DataLoader(data, batch_size=64, pin_memory=True)
logits, correct = [], 0
with torch.no_grad():
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        out = model(images)
        logits.append(out)
        correct += (out.argmax(1) == labels).sum().item()
print(correct / len(data), torch.cat(logits).softmax(1).max().item())
