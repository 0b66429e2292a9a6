"""A denoising diffusion model on small images."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from tqdm import tqdm

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
T = 1000
betas = torch.linspace(1e-4, 0.02, T, device=device)
alphas_bar = torch.cumprod(1 - betas, 0)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, tdim=256):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.time = nn.Linear(tdim, cout)
        self.norm2, self.conv2 = nn.GroupNorm(8, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, base=64):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256))
        self.inp = nn.Conv2d(3, base, 3, padding=1)
        self.down = nn.ModuleList([ResBlock(base, base), ResBlock(base, base * 2), ResBlock(base * 2, base * 4)])
        self.mid = ResBlock(base * 4, base * 4)
        self.up = nn.ModuleList([ResBlock(base * 8, base * 2), ResBlock(base * 4, base), ResBlock(base * 2, base)])
        self.out = nn.Sequential(nn.GroupNorm(8, base), nn.SiLU(), nn.Conv2d(base, 3, 3, padding=1))

    def forward(self, x, t):
        freqs = torch.exp(-math.log(10000) * torch.arange(32, device=x.device) / 32)
        angles = t[:, None].float() * freqs[None]
        t = self.embed(torch.cat([angles.sin(), angles.cos()], 1))
        x, skips = self.inp(x), []
        for block in self.down:
            x = block(x, t)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.mid(x, t)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2), skips.pop()], 1), t)
        return self.out(x)


model = UNet().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=2e-4)
for step in tqdm(range(5)):
    x0 = torch.randn(16, 3, 64, 64).to(device)
    t = torch.randint(0, T, (x0.shape[0],), device=device)
    noise = torch.randn_like(x0)
    a = alphas_bar[t][:, None, None, None]
    loss = F.mse_loss(model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t), noise)
    opt.zero_grad()
    loss.backward()
    opt.step()
model.eval()
with torch.no_grad():
    x = torch.randn(16, 3, 64, 64, device=device)
    for i in reversed(range(T - 4, T)):
        eps = model(x, torch.full((16,), i, device=device))
        x = (x - betas[i] / (1 - alphas_bar[i]).sqrt() * eps) / (1 - betas[i]).sqrt()
torch.save(x.cpu(), "/tmp/samples.pt")
