"""Where tensors are computed: the processor, or a CUDA device for each rank. No CUDA device was at hand to test on."""

import os
from dataclasses import fields, replace
from typing import Any

import torch

from model.config import TrainConfig
from model.errors import RecipeError

AMPERE = (8, 0)
"""Compute capability of the first generation that multiplies bfloat16 and tf32."""


def training_device(config: TrainConfig, rank: int) -> torch.device:
    """The device of a rank; RecipeError where this machine has none as is asked for.

    Makes CUDA's sums repeat: cuBLAS does so with a workspace of its own, which it must be told before it starts.
    """
    if config.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        build = "was built without CUDA" if torch.version.cuda is None else "finds no device"
        raise RecipeError(
            f"train.device is cuda, and PyTorch {torch.__version__} {build}. Set train.device = cpu, or run where"
            f" `python -c 'import torch; print(torch.cuda.is_available())'` prints True."
        )
    found = torch.cuda.device_count()
    here = config.ranks // config.hosts.count
    rank %= here
    if here > found:
        raise RecipeError(
            f"train.ranks puts {here} ranks on a machine, each with a CUDA device of its own, and this one has {found}."
            f" Set train.ranks = {found * config.hosts.count} or less."
        )
    if config.dtype in ("bfloat16", "tf32") and torch.cuda.get_device_capability(rank) < AMPERE:
        raise RecipeError(
            f"train.dtype is {config.dtype}, which {torch.cuda.get_device_name(rank)} cannot multiply; devices from"
            f" Ampere on can. Set train.dtype = float16, or float32."
        )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def moved(batch: Any, device: torch.device) -> Any:
    """A batch on the device; itself on a processor."""
    if device.type == "cpu":
        return batch
    tensors = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(batch, **{name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()})
