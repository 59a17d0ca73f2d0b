"""Where a trained model computes: on the device and in the types of its training, or on the CPU in float32.

`inference_on` rounds the matrices of a network for good, `training_on` leaves weights as they are."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn

from model.config.fields import Dtype
from model.engines.runtime import AMPERE, AUTOCAST_TYPES, autocast, set_matmul_precision
from model.errors import RecipeError

Device = Literal["cpu", "cuda"]


@contextmanager
def inference_on(device: Device, description: Mapping[str, Any], *networks: nn.Module) -> Iterator[None]:
    """Move networks to the device, and compute there as their training did until the block ends.

    `description` is the contents of `model.json`. On a CUDA device products have the type of the training
    (`train.dtype`): in float16 and bfloat16, matrices are rounded once, and the rest is float32 as in training. A CPU
    computes in float32. Raises RecipeError where the machine has no such device.
    """
    with training_on(device, description) as dtype:
        if device == "cuda":
            for network in networks:
                network.to("cuda")
                round_matrices(network, dtype)
        yield


@contextmanager
def training_on(device: Device, description: Mapping[str, Any]) -> Iterator[Dtype]:
    """Compute on the device as the training did that `description` is of, until the block ends; yield the type of
    products.

    Raises RecipeError where the machine has no such device.
    """
    if device == "cpu":
        yield "float32"
        return
    if not torch.cuda.is_available():
        raise RecipeError(
            f"device is cuda, and PyTorch {torch.__version__} finds none. Set the device to cpu, or run where"
            f" `python -c 'import torch; print(torch.cuda.is_available())'` prints True."
        )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    dtype = trained_with(description)["dtype"]
    if dtype in ("bfloat16", "tf32") and torch.cuda.get_device_capability() < AMPERE:
        dtype = "float32"
    before = torch.get_float32_matmul_precision()
    set_matmul_precision(dtype)
    try:
        with autocast(dtype, torch.device("cuda")):
            yield dtype
    finally:
        torch.set_float32_matmul_precision(before)


def trained_with(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return `device` and `dtype` of the training that `model.json` describes; a CPU's where it says nothing."""
    train = description.get("train") or {}
    return {"device": train.get("device", "cpu"), "dtype": train.get("dtype", "float32")}


def choose_device(asked: Device | None, description: Mapping[str, Any]) -> Device:
    """Return the device that was asked for, by default that of the training if this machine has one."""
    if asked is not None:
        return asked
    return "cuda" if trained_with(description)["device"] == "cuda" and torch.cuda.is_available() else "cpu"


def round_matrices(network: nn.Module, dtype: str) -> None:
    """Round the weights of linear layers to a narrow `dtype`, in place, as autocast does for each product.

    Each product would otherwise round its matrix again, which takes longer than the product with a few tokens. Norms
    and tables stay float32.
    """
    if dtype in AUTOCAST_TYPES:
        for module in network.modules():
            if isinstance(module, nn.Linear):
                module.to(AUTOCAST_TYPES[dtype])
