"""Prints how long enabling cachalot takes, without the import of PyTorch and CUDA's first use."""

from __future__ import annotations

import os
import time

import torch  # noqa: F401

os.environ["CACHALOT"] = "1"
began = time.perf_counter()
import cachalot_gpu_start  # noqa: E402

cachalot_gpu_start.start()
took = time.perf_counter() - began

import cachalot_gpu.torch  # noqa: E402

print(f"enable, s|{took:.3f}, enabled {cachalot_gpu.torch.enabled()}")
