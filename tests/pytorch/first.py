"""The first program after an installation: with ``CACHALOT=1``, and with no word of cachalot but in its questions."""

from __future__ import annotations

import torch

served = ""
if torch.cuda.is_available():
    block = torch.ones(1 << 20, dtype=torch.uint8).to("cuda")
    served = f", {int(block.cpu().sum())} bytes came back from a GPU"

import cachalot_gpu.torch  # noqa: E402

whole = cachalot_gpu.torch._whole.in_place()
print(f"PyTorch {torch.__version__}|enabled {cachalot_gpu.torch.enabled()}, whole {whole}{served}")
