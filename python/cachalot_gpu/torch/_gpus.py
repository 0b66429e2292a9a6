"""GPUs as which a prediction can answer."""

from __future__ import annotations

from dataclasses import dataclass

HOPPER_WORKSPACE = 32 << 20
"""The workspace that PyTorch gives to each handle of cuBLAS on compute capability 9.0, in bytes.
cuBLASLt shares it (PyTorch 2.7 and later)."""

OTHER_WORKSPACE = (4096 * 2 + 16 * 8) << 10
"""The workspace of a handle on every other GPU, in bytes."""


@dataclass(frozen=True)
class Gpu:
    """What ``torch.cuda`` tells about a GPU."""

    name: str
    """Its name."""
    capability: tuple[int, int]
    """Its compute capability."""
    processors: int
    """The number of its multiprocessors."""
    total_gib: float
    """Its memory, as PyTorch reports it."""
    shared_kib: int
    """The shared memory of a multiprocessor."""

    @property
    def total_bytes(self) -> int:
        """Its memory in bytes, in whole MiB."""
        return int(self.total_gib * 1024) << 20

    @property
    def workspace_bytes(self) -> int:
        """The workspace that PyTorch gives to each handle of cuBLAS, in bytes."""
        return HOPPER_WORKSPACE if self.capability == (9, 0) else OTHER_WORKSPACE


GPUS = {
    "H100": Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 79.1, 228),
    "H200": Gpu("NVIDIA H200", (9, 0), 132, 139.7, 228),
    "B200": Gpu("NVIDIA B200", (10, 0), 148, 178.3, 228),
    "A100-40": Gpu("NVIDIA A100-SXM4-40GB", (8, 0), 108, 39.3, 164),
    "A100-80": Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 79.1, 164),
    "A10G": Gpu("NVIDIA A10G", (8, 6), 80, 22.0, 100),
    "L4": Gpu("NVIDIA L4", (8, 9), 58, 22.0, 100),
    "L40S": Gpu("NVIDIA L40S", (8, 9), 142, 44.3, 100),
    "RTX3090": Gpu("NVIDIA GeForce RTX 3090", (8, 6), 82, 23.6, 100),
    "RTX4090": Gpu("NVIDIA GeForce RTX 4090", (8, 9), 128, 23.5, 100),
    "V100-16": Gpu("Tesla V100-SXM2-16GB", (7, 0), 80, 15.7, 96),
    "V100-32": Gpu("Tesla V100-SXM2-32GB", (7, 0), 80, 31.7, 96),
    "T4": Gpu("Tesla T4", (7, 5), 40, 14.5, 64),
}
"""The GPUs by the names of the option ``--gpu``. The memory is what PyTorch reports of such a card,
which is less than its name says, rounded down."""

USUAL = "H100"
"""The GPU without the option."""
