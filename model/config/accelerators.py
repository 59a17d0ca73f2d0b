"""Accelerators as their makers state them: peak FLOP/s of dense (not sparse) products, memory, and links."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Links:
    """Bytes/s that a device sends."""

    machine: float
    """To the others of its machine: half of what is stated for both directions of NVLink."""
    network: float
    """To other machines: its share of the network of the maker's machine."""


@dataclass(frozen=True)
class Accelerator:
    """One device, its peak FLOP/s by type of the products, and its bytes of memory."""

    name: str
    flops: Mapping[str, float]
    memory_bytes: float
    source: str
    arithmetic: str = "bfloat16"
    """The type of which `peak_flops` is."""
    links: Links | None = None
    """None where they are unknown."""

    @property
    def peak_flops(self) -> float:
        return self.flops[self.arithmetic]


_VOLTA = {"float16": 125e12, "float32": 15.7e12}
_AMPERE = {"bfloat16": 312e12, "float16": 312e12, "tf32": 156e12, "float32": 19.5e12}
_HOPPER = {"bfloat16": 989e12, "float16": 989e12, "tf32": 495e12, "float32": 67e12}

# NVIDIA's data sheets of DGX-1 (4 x 100 Gb/s), DGX A100 (8 x 200) and DGX H100 (8 x 400).
_DGX_1, _DGX_A100, _DGX_H100 = Links(150e9, 6.25e9), Links(300e9, 25e9), Links(450e9, 50e9)

_HALF = "half of the sparse figure"

ACCELERATORS = {
    device.name: device
    for device in (
        Accelerator("v100", _VOLTA, 32e9, "NVIDIA V100 data sheet (2020), SXM2 32 GB", "float16", _DGX_1),
        Accelerator("a100", _AMPERE, 80e9, "NVIDIA A100 data sheet (2021), SXM 80 GB", links=_DGX_A100),
        Accelerator("a100-40gb", _AMPERE, 40e9, "NVIDIA A100 data sheet (2020), 40 GB", links=_DGX_A100),
        Accelerator("h100", _HOPPER, 80e9, f"NVIDIA H100 data sheet (2023), SXM, {_HALF}", links=_DGX_H100),
        Accelerator("h200", _HOPPER, 141e9, f"NVIDIA H200 data sheet (2024), SXM, {_HALF}", links=_DGX_H100),
        Accelerator("tpu-v4", {"bfloat16": 275e12}, 32e9, "Jouppi et al. 2023, table 4"),
        Accelerator("tpu-v5e", {"bfloat16": 197e12}, 16e9, "Google Cloud documentation, TPU v5e"),
        Accelerator("tpu-v5p", {"bfloat16": 459e12}, 95e9, "Google Cloud documentation, TPU v5p"),
    )
}
