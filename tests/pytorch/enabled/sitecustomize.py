"""Enables cachalot in every Python process that starts with this folder on ``PYTHONPATH``.

``enable()`` runs right before PyTorch initialises CUDA, so that a process without CUDA stays without cachalot. A
process whose settings ask for another allocator keeps that allocator.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def enable_before_cuda(torch: ModuleType) -> None:
    """Enables cachalot in front of the call that initialises CUDA."""
    initialise = getattr(torch._C, "_cuda_init", None)
    if initialise is None:
        return

    def enable_and_initialise() -> None:
        torch._C._cuda_init = initialise
        if not any("backend:cudaMallocAsync" in os.environ.get(name, "") for name in SETTINGS):
            import cachalot_gpu.torch

            cachalot_gpu.torch.enable()
        initialise()

    torch._C._cuda_init = enable_and_initialise


class AfterTorch(importlib.abc.MetaPathFinder):
    """Calls :func:`enable_before_cuda` after the import of ``torch``."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns the ordinary specification of ``torch``, with another step after its execution."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_enable(module: ModuleType) -> None:
            execute(module)
            enable_before_cuda(module)

        spec.loader.exec_module = execute_and_enable  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, AfterTorch())
