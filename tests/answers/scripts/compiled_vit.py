"""A vision transformer under torch.compile."""
import torch
from torchvision.models import vit_b_16

assert torch.cuda.is_available(), "needs a GPU"
device = torch.device("cuda")
print(torch.cuda.get_device_properties(device))
torch.set_float32_matmul_precision("high")
model = vit_b_16(num_classes=100).to(device)
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(4):
    images = torch.randn(16, 3, 224, 224, device=device)
    labels = torch.randint(0, 100, (16,), device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(compiled(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
print("peak", torch.cuda.max_memory_allocated())
