"""Devices that training runs on: peak arithmetic of dense matrices and memory, as their makers state them."""

import difflib
from dataclasses import dataclass

from model.errors import RecipeError

THIS = "this"


@dataclass(frozen=True)
class Accelerator:
    """One device: dense (not sparse) bf16 FLOP/s, or the type named, and bytes of memory."""

    name: str
    peak_flops: float
    memory_bytes: float
    source: str
    arithmetic: str = "bfloat16"


ACCELERATORS = {
    device.name: device
    for device in (
        Accelerator("v100", 125e12, 32e9, "NVIDIA V100 data sheet (2020), SXM2 32 GB", "float16"),
        Accelerator("a100", 312e12, 80e9, "NVIDIA A100 data sheet (2021), SXM 80 GB"),
        Accelerator("a100-40gb", 312e12, 40e9, "NVIDIA A100 data sheet (2020), 40 GB"),
        Accelerator("h100", 989e12, 80e9, "NVIDIA H100 data sheet (2023), SXM, half of the sparse figure"),
        Accelerator("h200", 989e12, 141e9, "NVIDIA H200 data sheet (2024), SXM, half of the sparse figure"),
        Accelerator("tpu-v4", 275e12, 32e9, "Jouppi et al. 2023, table 4"),
        Accelerator("tpu-v5e", 197e12, 16e9, "Google Cloud documentation, TPU v5e"),
        Accelerator("tpu-v5p", 459e12, 95e9, "Google Cloud documentation, TPU v5p"),
    )
}


def find_accelerator(name: str) -> Accelerator:
    """The device of that name; RecipeError with those that are known, for another one."""
    wanted = name.lower()
    if wanted in ACCELERATORS:
        return ACCELERATORS[wanted]
    known = [*ACCELERATORS, THIS]
    close = difflib.get_close_matches(wanted, known, n=1)
    hint = f"; did you mean `{close[0]}`?" if close else "."
    raise RecipeError(f"--hardware {name}: unknown{hint} Known are {', '.join(known)} (this machine's processor)")
